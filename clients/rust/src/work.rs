//! Works through a queue by Get and Ack, which live on over a broken connection and a restart of the service.

use std::fmt::Display;
use std::pin::pin;
use std::time::Duration;

use tokio::select;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tonic::Code;
use tracing::warn;

use crate::client::backoff;
use crate::error::Error;
use crate::lease::Lease;
use crate::queue::{LeaseOptions, Queue, new_attempt_id};
use crate::v1::ErrorReason;

const IDLE_WAIT: Duration = Duration::from_secs(30); // one waiting Get; shorter notices a lost service sooner
const FINAL_TRIES: u32 = 5; // after a stop: how often a finished message's ack is tried before its lease is left to lapse

/// How a queue is worked through.
#[derive(Clone, Debug)]
pub struct WorkOptions {
    /// How many messages are worked on at a time, at least 1.
    pub concurrency: usize,
    /// How long a lease lasts if nothing extends it. `None`: as the queue's policy says.
    pub lease: Option<Duration>,
    /// Who works, for people who look.
    pub consumer: String,
}

impl Default for WorkOptions {
    fn default() -> Self {
        WorkOptions { concurrency: 1, lease: None, consumer: String::new() }
    }
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
    pub async fn work<H, F, E>(
        &self,
        options: WorkOptions,
        stop: impl Future<Output = ()>,
        handler: H,
    ) -> Result<(), Error>
    where
        H: Fn(Lease) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Result<Vec<u8>, E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        let (stopping, is_stopping) = watch::channel(false);
        let concurrency = options.concurrency.max(1);
        let options = LeaseOptions { wait: IDLE_WAIT, lease: options.lease, consumer: options.consumer };
        let mut slots = JoinSet::new();
        for _ in 0..concurrency {
            slots.spawn(slot(self.clone(), options.clone(), is_stopping.clone(), handler.clone()));
        }
        let mut stop = pin!(stop);
        let mut failure = None;
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
async fn slot<H, F, E>(
    queue: Queue,
    options: LeaseOptions,
    mut is_stopping: watch::Receiver<bool>,
    handler: H,
) -> Result<(), Error>
where
    H: Fn(Lease) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Vec<u8>, E>> + Send + 'static,
    E: Display + Send + 'static,
{
    let _token = queue.client().token();
    let mut attempt_id = new_attempt_id();
    let mut is_again = false; // a Get of this name may have leased something unknown to us
    let mut failures = 0;
    loop {
        let got = select! {
            biased;
            _ = is_stopping.wait_for(|is_stopping| *is_stopping) => break,
            got = queue.fetch(&options, &attempt_id, is_again) => got,
        };
        match got {
            Ok(lease) => {
                (attempt_id, is_again, failures) = (new_attempt_id(), false, 0);
                if let Some(lease) = lease {
                    handle(&queue, &lease, handler.clone(), &is_stopping).await;
                }
            }
            Err(error) if error.is(ErrorReason::QueueDrained) => return Ok(()),
            Err(error) if !error.is_passing() => return Err(error),
            Err(error) => {
                failures += 1;
                is_again |= error.outcome_unknown;
                if failures == 1 {
                    warn!(queue = queue.name(), %error, "trying again until it works");
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
        let options = LeaseOptions { wait: Duration::ZERO, ..options };
        let _ = queue.fetch(&options, &attempt_id, true).await;
    }
    Ok(())
}

async fn handle<H, F, E>(queue: &Queue, lease: &Lease, handler: H, is_stopping: &watch::Receiver<bool>)
where
    H: Fn(Lease) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Vec<u8>, E>> + Send + 'static,
    E: Display + Send + 'static,
{
    let (held, token) = (lease.clone(), queue.client().token());
    let mut running = JoinSet::new(); // a task of its own: a panic is the message's failure, and a drop ends it
    running.spawn(async move {
        let _token = token;
        handler(held).await.map_err(|error| error.to_string())
    });
    let mut done = match running.join_next().await {
        Some(Ok(done)) => done,
        _ => Err("the handler panicked".to_owned()),
    };
    for tries in 1.. {
        let Err(error) = lease.conclude(&done).await else { return };
        let is_final = tries >= FINAL_TRIES && *is_stopping.borrow();
        if lease.is_lost() || !error.is_passing() && error.code != Code::InvalidArgument || is_final {
            warn!(id = lease.message().id, %error, "a message was handled, but could not be settled");
            return;
        }
        if error.code == Code::InvalidArgument {
            done = Err(error.to_string()); // its result is refused
        } else {
            sleep(backoff(tries, error.retry_after)).await;
        }
    }
}
