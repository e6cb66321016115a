//! Spans and addresses, what is said when nobody is there, and what is made again.

mod service;

use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use headway::v1::{watch_position_response::Event, *};
use headway::{Error, connect, span};
use prost::Message as _;
use service::{Said, answered, came, client_of, listened_client_of, lost, refused, requests};
use tokio::{sync::Notify, time::advance, time::pause, time::resume, time::timeout};
use tokio_stream::StreamExt;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// An address where nobody listens.
fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn a_span_is_rounded_up_to_whole_milliseconds() {
    for (given, seconds, nanos) in [
        (Duration::ZERO, 0, 0),
        (Duration::from_nanos(1), 0, 1_000_000),
        (Duration::from_micros(1001), 0, 2_000_000),
        (Duration::from_nanos(999_000_001), 1, 0),
        (Duration::new(3, 5_000_000), 3, 5_000_000),
        (Duration::MAX, 1_000_000_000, 0), // more than the service takes, so it says so
    ] {
        assert_eq!(span(given), prost_types::Duration { seconds, nanos }, "{given:?}");
    }
}

#[tokio::test]
async fn what_is_no_address_is_refused() {
    for address in ["", ",", "localhost", "a b:1", "127.0.0.1:many"] {
        let error = connect(Some(address)).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument, "{address:?}");
    }
}

#[tokio::test]
async fn a_comma_at_the_end_is_no_address() {
    for addresses in ["127.0.0.1:1,", "127.0.0.1:1, 127.0.0.1:2 , "] {
        assert!(connect(Some(addresses)).is_ok(), "{addresses:?}");
    }
}

#[tokio::test]
async fn nobody_there_is_unavailable() {
    let mut client = connect(Some(&format!("{}, {}", nobody(), nobody()))).unwrap();
    client.attempts = 2;
    let error = client.call(DescribeRequest { queue: "q".into() }).await.unwrap_err();
    assert_eq!((error.code, error.outcome_unknown), (Code::Unavailable, false));
    let error = client.queue("q").lease(Duration::ZERO, None).await.unwrap_err();
    assert_eq!(error.code, Code::Unavailable);
}

#[tokio::test]
async fn a_call_that_nobody_answers_ends_at_its_deadline() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap(); // connections wait in its backlog
    let address = silent.local_addr().unwrap().to_string();
    let mut client = connect(Some(&address)).unwrap();
    client.call_timeout = Some(Duration::from_millis(100));
    let error = client.call(GetRequest { queue: "q".into(), ..Default::default() }).await.unwrap_err();
    assert_eq!((error.code, error.outcome_unknown), (Code::DeadlineExceeded, true));
}

#[tokio::test]
async fn a_token_that_no_header_holds_is_refused_before_it_is_sent() {
    let client = connect(Some(&nobody())).unwrap().with_token(|| Some("two\nlines".into()));
    let error = client.call(DescribeRequest { queue: "q".into() }).await.unwrap_err();
    assert_eq!((error.code, error.text.as_str()), (Code::Unauthenticated, "the token is no text of ASCII"));
}

#[tokio::test]
async fn a_withdraw_whose_answer_was_lost_is_not_made_again() {
    let (client, asked) = client_of(|_| lost()).await;
    let error = client.call(WithdrawRequest { queue: "q".into(), ..Default::default() }).await.unwrap_err();
    assert!(error.outcome_unknown);
    assert_eq!(*asked.lock().unwrap(), ["Withdraw"]);
}

/// How a put ends whose first answer was lost, and whose others are this.
async fn put_after_a_lost_answer(said: Said) -> Error {
    let mut first = Some(lost());
    let (mut client, asked) = client_of(move |_| first.take().unwrap_or_else(|| said.clone())).await;
    client.attempts = 3;
    let message = Message { id: "a".into(), ..Default::default() };
    let error = client.queue("q").put(vec![message], Duration::ZERO).await.unwrap_err();
    assert!(asked.lock().unwrap().len() > 1);
    error
}

#[tokio::test]
async fn a_repeat_that_is_refused_unseen_leaves_the_outcome_unknown() {
    use Code::{FailedPrecondition, PermissionDenied, ResourceExhausted, Unauthenticated, Unavailable};
    for (code, reason) in [
        (Unavailable, "SHUTTING_DOWN"),
        (ResourceExhausted, "OVERLOADED"),
        (ResourceExhausted, "QUOTA_EXCEEDED"),
        (ResourceExhausted, "STORE_FULL"),
        (Unauthenticated, "UNAUTHENTICATED"),
        (PermissionDenied, "PERMISSION_DENIED"),
        (FailedPrecondition, "QUEUE_CLOSED"),
    ] {
        let error = put_after_a_lost_answer(refused(code, reason)).await;
        assert_eq!((error.text.as_str(), error.outcome_unknown), ("lost", true), "{reason}");
    }
}

#[tokio::test]
async fn a_repeat_that_finds_nobody_leaves_the_outcome_unknown() {
    let error = put_after_a_lost_answer(Said::Leave).await;
    assert_eq!((error.text.as_str(), error.outcome_unknown), ("lost", true));
}

#[tokio::test]
async fn a_repeat_that_tells_what_became_of_the_call_is_believed() {
    for (code, reason) in [
        (Code::NotFound, "QUEUE_NOT_FOUND"),
        (Code::AlreadyExists, "DUPLICATE_MESSAGE"),
        (Code::InvalidArgument, "TOO_LARGE"),
    ] {
        let error = put_after_a_lost_answer(refused(code, reason)).await;
        assert_eq!((error.text.as_str(), error.outcome_unknown), (reason, false));
    }
}

#[tokio::test]
async fn a_repeated_get_that_finds_the_queue_drained_or_paused_says_so() {
    for reason in ["QUEUE_DRAINED", "QUEUE_PAUSED"] {
        let mut first = Some(lost());
        let say = move |_: &str| first.take().unwrap_or_else(|| refused(Code::FailedPrecondition, reason));
        let (client, asked) = client_of(say).await;
        let error = client.queue("q").lease(Duration::ZERO, None).await.unwrap_err();
        assert_eq!((error.text.as_str(), error.outcome_unknown), (reason, false));
        assert_eq!(*asked.lock().unwrap(), ["Get", "Get"]);
    }
}

#[tokio::test]
async fn a_repeated_put_keeps_what_is_there_and_tells_of_messages_of_others() {
    let mut first = Some(lost());
    let say = move |_: &str| {
        let theirs = PutResult { id: "a".into(), deduplicated: true, body_differs: true, ..Default::default() };
        first.take().unwrap_or_else(|| answered(PutResponse { results: vec![theirs] }))
    };
    let (client, _, heard) = listened_client_of(say).await;
    let message = Message { id: "a".into(), ..Default::default() };
    let results = client.queue("q").put(vec![message], Duration::ZERO).await.unwrap();
    assert!(results[0].deduplicated && results[0].body_differs);
    let told: Vec<OnDuplicate> = requests::<PutRequest>(&heard, "Put").iter().map(PutRequest::on_duplicate).collect();
    assert_eq!(told, [OnDuplicate::Unspecified, OnDuplicate::Keep]);
}

#[tokio::test]
async fn a_call_that_is_not_answered_is_made_again_where_that_is_safe() {
    let mut is_first = true;
    let silent_at_first = move |_: &str| {
        let said = if is_first { Said::Silence } else { answered(DescribeResponse::default()) };
        is_first = false;
        said
    };
    let (mut client, asked) = client_of(silent_at_first).await;
    client.call_timeout = Some(Duration::from_secs(5));
    client.call(DescribeRequest { queue: "q".into() }).await.unwrap();
    assert_eq!(*asked.lock().unwrap(), ["Describe", "Describe"]);
    let (mut client, asked) = client_of(silent_at_first).await;
    client.call_timeout = Some(Duration::from_millis(2500));
    let error = client.call(WithdrawRequest::default()).await.unwrap_err();
    assert_eq!((error.code, error.outcome_unknown), (Code::DeadlineExceeded, true));
    assert_eq!(*asked.lock().unwrap(), ["Withdraw"]);
}

#[tokio::test]
async fn a_worker_that_waits_for_the_service_hears_that_it_is_to_stop() {
    let mut later = ErrorDetails::with_retry_info(Some(Duration::from_secs(600)));
    later.set_error_info("OVERLOADED", "headway.v1", HashMap::new());
    let busy = Status::with_error_details(Code::ResourceExhausted, "busy", later);
    let (client, asked) = client_of(move |_| Said::Answer(Err(busy.clone()))).await;
    let stop = Arc::new(Notify::new());
    let (queue, stopped) = (client.queue("q"), stop.clone());
    let worker =
        tokio::spawn(
            async move { queue.work(1, None, stopped.notified(), |_| async { Ok::<_, Error>(vec![]) }).await },
        );
    came(&asked, &["Get"]).await;
    stop.notify_one();
    timeout(Duration::from_secs(5), worker).await.expect("it did not hear it").unwrap().unwrap();
}

#[tokio::test]
async fn what_grpc_itself_refuses_as_too_large_ends_a_worker_and_a_watch() {
    for code in [Code::ResourceExhausted, Code::OutOfRange] {
        // Of a request or its metadata, and tonic's own of an answer.
        let (client, _) = client_of(move |_| Said::Answer(Err(Status::new(code, "larger than max")))).await;
        let queue = client.queue("q");
        let work = queue.work(1, None, std::future::pending(), |_| async { Ok::<_, Error>(vec![]) });
        let worked = timeout(Duration::from_secs(5), work).await.expect("the worker asks again");
        assert_eq!(worked.unwrap_err().code, code);
        let mut watch = queue.watch(["m"], false);
        let told = timeout(Duration::from_secs(5), watch.next()).await.expect("the watch asks again");
        assert_eq!(told.unwrap().unwrap_err().code, code);
    }
}

#[tokio::test]
async fn a_watch_that_was_served_goes_on_with_the_token_of_now_and_ends_when_that_is_refused() {
    for code in [Code::Unauthenticated, Code::PermissionDenied] {
        let mut streams = 0;
        let say = move |_: &str| {
            streams += 1;
            let place = Event::Position(Position { position: streams, ..Default::default() });
            let told = WatchPositionResponse { event: Some(place), ..Default::default() };
            let expired = Status::new(code, "expired");
            if streams < 3 { Said::End(told.encode_to_vec(), expired) } else { Said::Answer(Err(expired)) }
        };
        let (client, asked) = client_of(say).await;
        let mut watch = client.queue("q").watch(["m"], false);
        for position in [1, 2] {
            let told = watch.next().await.unwrap().unwrap();
            assert!(matches!(told.event, Some(Event::Position(place)) if place.position == position));
        }
        assert_eq!(watch.next().await.unwrap().unwrap_err().code, code);
        assert_eq!(asked.lock().unwrap().len(), 3);
    }
}

#[tokio::test]
async fn a_worker_refuses_a_concurrency_of_nothing() {
    let queue = connect(Some(&nobody())).unwrap().queue("q");
    let work = queue.work(0, None, std::future::pending(), |_| async { Ok::<_, Error>(vec![]) });
    let error = timeout(Duration::from_secs(5), work).await.expect("it works").unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument);
}

#[tokio::test]
async fn a_watch_that_is_refused_before_it_is_served_ends() {
    let (client, asked) = client_of(|_: &str| refused(Code::Unauthenticated, "UNAUTHENTICATED")).await;
    let error = client.queue("q").watch(["m"], false).next().await.unwrap().unwrap_err();
    assert!(error.is(ErrorReason::Unauthenticated));
    assert_eq!(asked.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_watch_that_is_told_nothing_at_first_asks_again() {
    let mut is_first = true;
    let say = move |_: &str| {
        let end = Event::Finished(Finished { id: "m".into(), ..Default::default() });
        let told = WatchPositionResponse { event: Some(end), ..Default::default() };
        if std::mem::take(&mut is_first) { Said::Silence } else { answered(told) }
    };
    let (client, asked) = client_of(say).await;
    let mut watch = client.queue("q").watch(["m"], false);
    let first = tokio::spawn(async move { watch.next().await });
    came(&asked, &["WatchPosition"]).await;
    pause();
    advance(Duration::from_secs(10)).await;
    resume();
    let told = timeout(Duration::from_secs(5), first).await.expect("it did not ask again").unwrap().unwrap().unwrap();
    assert!(matches!(told.event, Some(Event::Finished(end)) if end.id == "m"));
}
