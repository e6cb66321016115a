//! What a lease makes of what the service says of it.

mod service;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use headway::v1::*;
use headway::{Error, ErrorReason, Lease};
use service::{Said, answered, came, client_of, listened_client_of, lost, refused, requests};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// The lease of a service that says this of an Ack and a Delay, and this of an Extend.
async fn lease_of(settling: Settled, extending: Settled) -> Arc<Lease> {
    let (client, _) = client_of(move |name| said(name, settling, extending)).await;
    let minute = Duration::from_secs(60); // it is not extended by itself meanwhile
    client.queue("q").lease(Duration::ZERO, Some(minute)).await.unwrap().unwrap()
}

fn said(name: &str, settling: Settled, extending: Settled) -> Said {
    let results = |settled: Settled| vec![SettleResult { settled: settled.into(), ..Default::default() }];
    match name {
        "Get" => {
            let message = Some(Message { id: "m".into(), ..Default::default() });
            let delivery = Delivery { message, lease: "token".into(), ..Default::default() };
            answered(GetResponse { deliveries: vec![delivery], ..Default::default() })
        }
        "Ack" => answered(AckResponse { results: results(settling) }),
        "Delay" => answered(DelayResponse { results: results(settling) }),
        _ => answered(ExtendResponse { results: results(extending) }),
    }
}

fn assert_stale(done: Result<(), Error>) {
    let error = done.unwrap_err();
    assert_eq!((error.code, error.reason), (Code::FailedPrecondition, ErrorReason::LeaseStale));
    assert!(!error.outcome_unknown);
}

#[tokio::test]
async fn an_ack_of_a_message_that_died_is_too_late() {
    let lease = lease_of(Settled::Dead, Settled::Extended).await;
    assert_stale(lease.ack("made").await);
    assert!(lease.lost.is_cancelled());
    assert_stale(lease.ack("made").await);
}

#[tokio::test]
async fn a_lease_that_is_known_to_be_lost_stays_so_when_its_message_died() {
    let lease = lease_of(Settled::Dead, Settled::Stale).await;
    assert_stale(lease.progress(0.5, "half").await);
    assert_stale(lease.finish::<String>(Ok(b"made".to_vec())).await);
    assert_stale(lease.finish(Err("in vain")).await);
}

#[tokio::test]
async fn work_whose_result_is_refused_goes_to_the_backoff() {
    let say = |name: &str| match name {
        "Ack" => refused(Code::InvalidArgument, "TOO_LARGE"),
        _ => said(name, Settled::Delayed, Settled::Extended),
    };
    let (client, asked) = client_of(say).await;
    let lease = client.queue("q").lease(Duration::ZERO, None).await.unwrap().unwrap();
    let error = lease.finish::<String>(Ok(vec![0; 4097])).await.unwrap_err();
    assert!(error.is(ErrorReason::TooLarge));
    assert_eq!(*asked.lock().unwrap(), ["Get", "Ack", "Delay"]);
}

#[tokio::test]
async fn a_delay_that_spends_the_last_attempt_is_done() {
    let lease = lease_of(Settled::Dead, Settled::Extended).await;
    lease.delay(None, "not today").await.unwrap();
    assert!(!lease.lost.is_cancelled());
    lease.ack("").await.unwrap(); // it is settled
}

#[tokio::test]
async fn a_lease_that_is_dropped_while_it_is_extended_goes_back() {
    let say =
        |name: &str| if name == "Extend" { Said::Silence } else { said(name, Settled::Released, Settled::Extended) };
    let (client, asked) = client_of(say).await;
    let lasts = Duration::from_secs(3);
    let lease = client.queue("q").lease(Duration::ZERO, Some(lasts)).await.unwrap().unwrap();
    came(&asked, &["Get", "Extend"]).await;
    drop(lease);
    client.settled().await;
    assert_eq!(*asked.lock().unwrap(), ["Get", "Extend", "Delay"]);
}

/// A service whose first Extend, that of a progress, is never answered.
fn silent_to_a_progress() -> impl FnMut(&str) -> Said + Send + 'static {
    let mut extends = 0;
    move |name| {
        extends += u32::from(name == "Extend");
        if name == "Extend" && extends == 1 { Said::Silence } else { said(name, Settled::Acked, Settled::Gone) }
    }
}

#[tokio::test]
async fn a_lease_is_extended_while_the_answer_to_its_progress_does_not_come() {
    let (client, asked) = client_of(silent_to_a_progress()).await;
    let lasts = Duration::from_secs(3);
    let lease = client.queue("q").lease(Duration::ZERO, Some(lasts)).await.unwrap().unwrap();
    tokio::select! {
        done = lease.progress(0.5, "half") => panic!("{done:?}"),
        () = came(&asked, &["Get", "Extend", "Extend"]) => {}
    }
    lease.lost.cancelled().await; // as that one was told
}

#[tokio::test]
async fn an_ack_does_not_wait_for_the_answer_to_a_progress() {
    let (client, asked) = client_of(silent_to_a_progress()).await;
    let minute = Duration::from_secs(60);
    let lease = client.queue("q").lease(Duration::ZERO, Some(minute)).await.unwrap().unwrap();
    let settled = async {
        came(&asked, &["Get", "Extend"]).await;
        lease.ack("made").await
    };
    tokio::select! {
        done = lease.progress(0.5, "half") => panic!("{done:?}"),
        acked = settled => acked.unwrap(),
    }
    assert!(!lease.lost.is_cancelled());
}

#[tokio::test]
async fn a_lease_that_a_repeated_get_brings_is_extended_at_once() {
    let mut is_first = true;
    let say = move |name: &str| {
        let is_lost = std::mem::take(&mut is_first);
        if is_lost { lost() } else { said(name, Settled::Acked, Settled::Extended) }
    };
    let (client, asked) = client_of(say).await;
    let minute = Duration::from_secs(60);
    let lease = client.queue("q").lease(Duration::ZERO, Some(minute)).await.unwrap().unwrap();
    came(&asked, &["Get", "Get", "Extend"]).await;
    lease.ack("").await.unwrap();
}

#[tokio::test]
async fn a_worker_keeps_the_name_of_its_get_until_one_is_answered_and_extends_at_once_what_that_brings() {
    let mut gets = 0;
    let say = move |name: &str| {
        gets += u32::from(name == "Get");
        match (name, gets) {
            ("Get", 1) => Said::Answer(Err(Status::internal("lost, and not asked for again by the call itself"))),
            ("Get", 3) => refused(Code::FailedPrecondition, "QUEUE_DRAINED"),
            _ => said(name, Settled::Acked, Settled::Extended),
        }
    };
    let (client, asked, heard) = listened_client_of(say).await;
    let seen = asked.clone();
    let handler = move |_: Arc<Lease>| {
        let seen = seen.clone();
        async move {
            came(&seen, &["Get", "Get", "Extend"]).await; // at once: most of its hour may be over
            Ok::<_, Error>(vec![])
        }
    };
    let hour = Duration::from_secs(3600);
    client.queue("q").work(1, Some(hour), std::future::pending(), handler).await.unwrap();
    assert_eq!(*asked.lock().unwrap(), ["Get", "Get", "Extend", "Ack", "Get"]);
    let names: Vec<String> = requests::<GetRequest>(&heard, "Get").into_iter().map(|get| get.attempt_id).collect();
    assert_eq!(names[0], names[1]);
    assert_ne!(names[1], names[2]);
}

#[tokio::test]
async fn a_worker_that_ends_in_a_pause_gives_back_what_the_get_before_it_may_have_leased() {
    for is_stopped in [true, false] {
        let mut later = ErrorDetails::with_retry_info(Some(Duration::from_secs(3600)));
        later.set_error_info("QUEUE_PAUSED", "headway.v1", HashMap::new());
        let mut first = Some(Status::with_error_details(Code::FailedPrecondition, "paused", later));
        let say = move |name: &str| match first.take_if(|_| name == "Get") {
            Some(paused) => Said::Answer(Err(paused)),
            None if name == "Describe" => answered(DescribeResponse::default()),
            None => said(name, Settled::Released, Settled::Extended),
        };
        let (client, asked, heard) = listened_client_of(say).await;
        let queue = client.queue("q");
        let paused = async {
            came(&asked, &["Get"]).await;
            client.call(DescribeRequest::default()).await.unwrap(); // answered behind it
        };
        if is_stopped {
            queue.work(1, None, paused, |_| async { Ok::<_, Error>(vec![]) }).await.unwrap();
        } else {
            tokio::select! {
                biased;
                done = queue.work(1, None, std::future::pending(), |_| async { Ok::<_, Error>(vec![]) }) => panic!("{done:?}"),
                () = paused => {}
            }
        }
        client.settled().await;
        assert_eq!(*asked.lock().unwrap(), ["Get", "Describe", "Get", "Delay"]);
        let names: Vec<String> = requests::<GetRequest>(&heard, "Get").into_iter().map(|get| get.attempt_id).collect();
        assert_eq!(names[0], names[1]);
        assert!(requests::<DelayRequest>(&heard, "Delay")[0].keep_attempt);
    }
}

#[tokio::test]
async fn a_handler_that_panics_before_there_is_a_future_gives_its_message_to_the_backoff() {
    let mut gets = 0;
    let say = move |name: &str| {
        gets += u32::from(name == "Get");
        let is_drained = name == "Get" && gets > 2;
        if is_drained {
            refused(Code::FailedPrecondition, "QUEUE_DRAINED")
        } else {
            said(name, Settled::Released, Settled::Extended)
        }
    };
    let (client, asked) = client_of(say).await;
    let handler = |lease: Arc<Lease>| {
        assert!(lease.message.id.is_empty(), "not that one");
        async { Ok::<_, Error>(vec![]) }
    };
    client.queue("q").work(1, None, std::future::pending(), handler).await.unwrap();
    client.settled().await;
    let delays = asked.lock().unwrap().iter().filter(|name| *name == "Delay").count();
    assert_eq!(delays, 2);
}

#[tokio::test]
async fn a_worker_goes_on_with_the_token_of_now_and_ends_when_that_is_refused() {
    for code in [Code::Unauthenticated, Code::PermissionDenied] {
        let mut gets = 0;
        let say = move |name: &str| {
            gets += u32::from(name == "Get");
            let is_served = name != "Get" || gets == 2;
            if is_served { said(name, Settled::Acked, Settled::Extended) } else { refused(code, "REFUSED") }
        };
        let (client, asked) = client_of(say).await;
        let queue = client.queue("q");
        let handler = |_: Arc<Lease>| async { Ok::<_, Error>(vec![]) };
        let error = queue.work(1, None, std::future::pending(), handler).await.unwrap_err();
        assert_eq!(error.code, code);
        came(&asked, &["Get", "Get", "Ack", "Get", "Get"]).await;
    }
}

#[tokio::test]
async fn a_get_that_does_not_wait_and_is_refused_is_not_made_again() {
    let (client, asked) = client_of(|_: &str| refused(Code::Unauthenticated, "UNAUTHENTICATED")).await;
    let error = client.queue("q").lease(Duration::ZERO, None).await.unwrap_err();
    assert!(error.is(ErrorReason::Unauthenticated));
    came(&asked, &["Get"]).await;
}

/// A service where the first Get is answered in the very moment in which it is cancelled, which its client never hears.
fn answered_too_late() -> impl FnMut(&str) -> Said + Send + 'static {
    let mut gets = 0;
    move |name| {
        gets += u32::from(name == "Get");
        if name == "Get" && gets == 1 { Said::Silence } else { said(name, Settled::Released, Settled::Extended) }
    }
}

#[tokio::test]
async fn what_a_get_leased_that_was_dropped_goes_back() {
    let (client, asked) = client_of(answered_too_late()).await;
    let queue = client.queue("q");
    tokio::select! {
        leased = queue.lease(Duration::from_secs(60), None) => panic!("{leased:?}"),
        () = came(&asked, &["Get"]) => {}
    }
    client.settled().await;
    assert_eq!(*asked.lock().unwrap(), ["Get", "Get", "Delay"]);
}

#[tokio::test]
async fn what_a_worker_was_sent_when_it_stopped_goes_back() {
    let (client, asked) = client_of(answered_too_late()).await;
    let handler = |_: Arc<Lease>| async { panic!("it was worked on") as Result<Vec<u8>, Error> };
    client.queue("q").work(1, None, came(&asked, &["Get"]), handler).await.unwrap();
    client.settled().await;
    assert_eq!(*asked.lock().unwrap(), ["Get", "Get", "Delay"]);
}
