//! Works through a queue by Get and Ack, which live on over a broken connection and a restart of the service.

use std::{fmt::Display, pin::Pin, pin::pin, sync::Arc, time::Duration};

use tokio::{select, sync::watch, task::JoinSet, time::sleep};
use tonic::Code;
use tracing::warn;

use crate::client::{backoff, new_attempt_id};
use crate::{error::Error, lease::Lease, queue::LeaseOptions, queue::Queue, v1::ErrorReason};

const IDLE_WAIT: Duration = Duration::from_secs(30); // one waiting Get; shorter notices a lost service sooner

type Handler = Arc<dyn Fn(Lease) -> Pin<Box<dyn Future<Output = Result<Vec<u8>, String>> + Send>> + Send + Sync>;

/// How a queue is worked through.
#[derive(Clone, Debug, Default)]
pub struct WorkOptions {
    /// How many messages are worked on at a time; 0 is 1.
    pub concurrency: usize,
    /// How long a lease lasts if nothing extends it. `None`: as the queue's policy says.
    pub lease: Option<Duration>,
    /// Who works, for people who look.
    pub consumer: String,
}

impl Queue {
    /// Calls `handler` with a lease for each message, `concurrency` at a time, until the queue is drained.
    ///
    /// Each lease is kept alive while its handler runs, and then settled, unless the handler did: `Ok` acks it with these
    /// bytes as its result (none: empty); an `Err` gives it to the queue's backoff with the error's text as the reason, and
    /// so does a panic. When `stop` completes it leases no more, finishes what it holds and returns; use
    /// `std::future::pending()` for never. When it is dropped the handlers are, and their messages are given back for
    /// free. While the service is away or busy it waits and goes on.
    ///
    /// # Errors
    /// What would not go away by itself, such as QUEUE_NOT_FOUND and QUEUE_DELETED, after finishing what it holds.
    pub async fn work<F, E: Display>(
        &self,
        options: WorkOptions,
        stop: impl Future<Output = ()>,
        handler: impl Fn(Lease) -> F + Send + Sync + 'static,
    ) -> Result<(), Error>
    where
        F: Future<Output = Result<Vec<u8>, E>> + Send + 'static,
    {
        let handler: Handler = Arc::new(move |lease| {
            let work = handler(lease);
            Box::pin(async move { work.await.map_err(|error| error.to_string()) })
        });
        let (stopping, is_stopping) = watch::channel(false);
        let leasing = LeaseOptions { wait: IDLE_WAIT, lease: options.lease, consumer: options.consumer };
        let mut slots = JoinSet::new();
        for _ in 0..options.concurrency.max(1) {
            slots.spawn(slot(self.clone(), leasing.clone(), is_stopping.clone(), handler.clone()));
        }
        let (mut stop, mut failure) = (pin!(stop), None);
        loop {
            select! {
                () = &mut stop, if !*is_stopping.borrow() => drop(stopping.send_replace(true)),
                ended = slots.join_next() => match ended {
                    Some(Ok(Err(error))) => {
                        stopping.send_replace(true);
                        failure = failure.or(Some(error));
                    }
                    Some(_) => {}
                    None => return failure.map_or(Ok(()), Err),
                },
            }
        }
    }
}

/// Fetches, handles and settles one message at a time.
async fn slot(
    queue: Queue,
    options: LeaseOptions,
    mut is_stopping: watch::Receiver<bool>,
    handler: Handler,
) -> Result<(), Error> {
    let _token = queue.client.left_behind.token();
    let (mut attempt_id, mut failures) = (new_attempt_id(), 0);
    let mut is_again = false; // a Get of this name may have leased something unknown to us
    while !*is_stopping.borrow() {
        let got = select! {
            biased; // an answer that is there is taken, whatever else happens
            got = queue.fetch(&options, &attempt_id, is_again) => got,
            _ = is_stopping.wait_for(|is_stopping| *is_stopping) => break,
        };
        match got {
            Ok(lease) => {
                (attempt_id, is_again, failures) = (new_attempt_id(), false, 0);
                if let Some(lease) = lease.filter(|_| !*is_stopping.borrow()) {
                    handle(&queue, lease, handler.clone(), &is_stopping).await;
                }
            }
            Err(error) if error.is(ErrorReason::QueueDrained) => return Ok(()),
            Err(error) if !error.is_passing() => return Err(error),
            Err(error) => {
                (is_again, failures) = (is_again || error.outcome_unknown, failures + 1);
                if failures == 1 {
                    warn!(queue = queue.name, %error, "trying again until it works");
                }
                select! {
                    _ = is_stopping.wait_for(|is_stopping| *is_stopping) => break,
                    () = sleep(backoff(failures, error.retry_after)) => {}
                }
            }
        }
    }
    if is_again {
        // What it leased whose answer never came: dropped, and so given back, now that nobody is going to work on it.
        let _ = queue.fetch(&LeaseOptions { wait: Duration::ZERO, ..options }, &attempt_id, true).await;
    }
    Ok(())
}

async fn handle(queue: &Queue, lease: Lease, handler: Handler, is_stopping: &watch::Receiver<bool>) {
    let (held, token) = (lease.clone(), queue.client.left_behind.token());
    let mut running = JoinSet::new(); // a task of its own: a panic is the message's failure, and a drop ends it
    running.spawn(async move { (handler(held).await, token).0 });
    let done = running.join_next().await.expect("it was spawned just now");
    let mut done = done.unwrap_or_else(|_| Err("the handler panicked".to_owned()));
    let mut tries = 0;
    while let Err(error) = lease.conclude(&done).await {
        tries += 1;
        if error.code == Code::InvalidArgument && done.is_ok() {
            done = Err(error.to_string()); // its result is refused
        } else if lease.is_lost() || !error.is_passing() || *is_stopping.borrow() {
            return warn!(id = lease.message().id, %error, "a message was handled, but could not be settled");
        } else {
            sleep(backoff(tries, error.retry_after)).await;
        }
    }
}
