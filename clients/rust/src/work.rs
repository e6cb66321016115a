//! Works through a queue by Get and Ack, which live on over a broken connection and a restart of the service.

use std::{fmt::Display, pin::pin, sync::Arc, time::Duration};

use tokio::{select, task::JoinSet, time::sleep};
use tracing::warn;

use crate::{client::backoff, error::Error, lease::Lease, queue::Queue, v1::ErrorReason};

const IDLE_WAIT: Duration = Duration::from_secs(30); // one waiting Get; shorter notices a lost service sooner

impl Queue {
    /// Calls `handler` with a lease for each message, at most `concurrency` at a time, until the queue is drained. `lasts`
    /// is as in [`Queue::lease`].
    ///
    /// Each lease is kept alive while its handler runs, and then settled, unless the handler did: `Ok` acks it with these
    /// bytes as its result (none: empty); an `Err` gives it to the queue's backoff with the error's text as the reason, and
    /// so does a panic. When `stop` completes it leases no more, finishes what it holds and returns; use
    /// `std::future::pending()` for never. When it is dropped the handlers are, and their messages are given back for
    /// free. While the service is away or busy it waits and goes on.
    ///
    /// # Errors
    /// What would not go away by itself, such as QUEUE_NOT_FOUND and QUEUE_DELETED, after finishing what it holds.
    pub async fn work<F, E: Display + 'static>(
        &self,
        concurrency: usize,
        lasts: Option<Duration>,
        stop: impl Future<Output = ()>,
        handler: impl Fn(Arc<Lease>) -> F,
    ) -> Result<(), Error>
    where
        F: Future<Output = Result<Vec<u8>, E>> + Send + 'static,
    {
        let (mut stop, mut handlers, mut failures) = (pin!(stop), JoinSet::new(), 0);
        let ended = loop {
            while handlers.try_join_next().is_some() {} // they have ended
            let is_free = handlers.len() < concurrency.max(1);
            let leased = select! {
                biased; // an answer that is there is taken, whatever else happens
                leased = self.lease(IDLE_WAIT, lasts), if is_free => leased,
                _ = handlers.join_next(), if !is_free => continue,
                () = &mut stop => break Ok(()),
            };
            match leased {
                Ok(lease) => {
                    failures = 0;
                    let handling = lease.map(|lease| handle(lease.clone(), handler(lease)));
                    handling.map(|handling| handlers.spawn(self.client.left_behind.track_future(handling)));
                }
                Err(error) if error.is(ErrorReason::QueueDrained) => break Ok(()),
                Err(error) if !error.is_passing() => break Err(error),
                Err(error) => {
                    failures += 1;
                    warn!(queue = self.name, %error, "trying again until it works");
                    sleep(backoff(failures, &error)).await;
                }
            }
        };
        while handlers.join_next().await.is_some() {}
        ended
    }
}

async fn handle<E: Display>(lease: Arc<Lease>, work: impl Future<Output = Result<Vec<u8>, E>>) {
    let done = work.await.map_err(|error| error.to_string());
    if let Err(error) = lease.finish(done).await {
        warn!(id = lease.message.id, %error, "a message was handled, but could not be settled");
        let _ = lease.delay(None, &error.to_string()).await; // perhaps it was its result that is refused
    }
}
