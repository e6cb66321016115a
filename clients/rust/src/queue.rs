//! One queue, seen by a client: puts into it, leases from it, works through it, and watches what is in it.

use std::{fmt::Display, panic::AssertUnwindSafe, panic::catch_unwind, pin::Pin, pin::pin, sync::Arc, time::Duration};

use {async_stream::try_stream, scopeguard::ScopeGuard, tokio_stream::Stream, tonic::Status, tracing::warn};
use {std::collections::BTreeSet, tokio::select, tokio::task::JoinSet, tokio::time::sleep, tokio::time::timeout};

use crate::client::{Client, LONGEST_SPAN, OF_CALLERS, PATIENCE, backoff, span};
use crate::{Error, Lease, v1::watch_position_request::Subject, v1::watch_position_response::Event, v1::*};

/// What a watch tells, one answer of the service after the other; dropping it ends the watch.
pub type Watch = Pin<Box<dyn Stream<Item = Result<WatchPositionResponse, Error>> + Send>>;

type Leased = Result<Option<Arc<Lease>>, Error>;

/// A handle on the queue of one name. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Queue {
    pub(crate) client: Client,
    pub(crate) name: String,
}

impl Queue {
    /// Puts messages, at most `Limits.max_batch_messages`, in order, and waits so long for room; ids that are
    /// known are refused. One result per message, where `error` says why one was refused. If all have ids it is made
    /// again where its answer was lost, with KEEP: what the first try put is answered `deduplicated`, and
    /// `body_differs` says that another message has the id, so that this one was not put. While a span of
    /// OpenTelemetry is current (feature `opentelemetry`), its context goes into the headers.
    ///
    /// # Errors
    /// QUEUE_NOT_FOUND, QUEUE_CLOSED, ROLE_IN_USE, STORE_FULL; QUEUE_FULL, DUPLICATE_MESSAGE and TOO_LARGE, if every
    /// message was refused for the same reason.
    pub async fn put(&self, messages: Vec<Message>, wait: Duration) -> Result<Vec<PutResult>, Error> {
        #[cfg(feature = "opentelemetry")]
        let messages = crate::trace::inject(messages);
        let is_safe = messages.iter().all(|message| !message.id.is_empty());
        let keep: fn(&mut PutRequest) = |put| put.set_on_duplicate(OnDuplicate::Keep);
        let request = PutRequest { queue: self.name.clone(), messages, wait: Some(span(wait)), ..Default::default() };
        Ok(self.client.repeat(request, is_safe.then_some(keep)).await?.results)
    }

    /// Leases one message; `None` if none came within `wait`. `lasts`: how long the lease lasts if nothing extends it,
    /// as when this process dies; `None`: as the queue's policy says. Dropping the call gives back what it leased, by a
    /// task that [`Client::settled`] waits for.
    ///
    /// # Errors
    /// QUEUE_NOT_FOUND, QUEUE_DRAINED, QUEUE_DELETED, QUEUE_PAUSED, ROLE_IN_USE.
    pub async fn lease(&self, wait: Duration, lasts: Option<Duration>) -> Result<Option<Arc<Lease>>, Error> {
        self.lease_as(&mut None, [Duration::ZERO, wait], lasts).await
    }

    /// `name`: that of the last Get, if it was not answered and so may have leased something; kept until one is.
    /// `pause`: how long to wait before this one.
    async fn lease_as(&self, name: &mut Option<u128>, [pause, wait]: [Duration; 2], lasts: Option<Duration>) -> Leased {
        let (is_old, own) = (name.is_some(), *name.get_or_insert_with(rand::random)); // no other Get has it
        let (wait, lease, attempt_id) = (Some(span(wait)), lasts.map(span), format!("{own:x}"));
        let request = GetRequest { queue: self.name.clone(), wait, lease, attempt_id, ..Default::default() };
        // Dropped, it may have been answered in that moment, or, in the pause, the one before: what was leased comes by
        // its name, and goes back.
        let (queue, client, now) = (self.clone(), &self.client, GetRequest { wait: None, ..request.clone() });
        let again = async move { drop(queue.get(now, lasts, false).await) };
        let asked = scopeguard::guard(again, |it| drop(client.left_behind.spawn_on(it, &client.runtime)));
        if !pause.is_zero() {
            sleep(pause).await; // one of zero lasts until the next tick of the timer
        }
        (self.get(request, lasts, is_old).await.inspect(|_| *name = None), ScopeGuard::into_inner(asked)).0
    }

    async fn get(&self, get: GetRequest, lasts: Option<Duration>, mut is_old: bool) -> Leased {
        let again = Some(|_: &mut GetRequest| is_old = true); // it may bring what the first try leased
        Ok(self.client.repeat(get, again).await?.deliveries.pop().map(|it| Lease::new(self.clone(), it, lasts, is_old)))
    }

    /// Calls `handler` with a lease for each message, at most `concurrency` at a time, until the queue is drained.
    /// `lasts` is as in [`Queue::lease`].
    ///
    /// Each lease is kept alive while its handler runs, and then settled, unless the handler did: `Ok` acks it with
    /// these bytes as its result (none: empty); an `Err` gives it to the queue's backoff with the error's text as the
    /// reason, and so does a panic. When `stop` completes it leases no more, finishes what it holds and returns; use
    /// `std::future::pending()` for never. When it is dropped the handlers are, and their messages are given back for
    /// free. While the service is away or busy it waits and goes on.
    ///
    /// # Errors
    /// What would not go away by itself, such as QUEUE_NOT_FOUND and QUEUE_DELETED, after finishing what it holds.
    /// INVALID_ARGUMENT without a reason for a concurrency of 0.
    pub async fn work<F: Future<Output = Result<Vec<u8>, E>> + Send + 'static, E: Display + 'static>(
        &self,
        concurrency: usize,
        lasts: Option<Duration>,
        stop: impl Future<Output = ()>,
        handler: impl Fn(Arc<Lease>) -> F,
    ) -> Result<(), Error> {
        (concurrency > 0).then_some(()).ok_or_else(|| Status::invalid_argument("a concurrency of 0 is none"))?;
        let (mut stop, mut handlers, mut pause, mut name) = (pin!(stop), JoinSet::new(), Duration::ZERO, None);
        let ended = loop {
            match select! {
                biased; // an answer that is there is taken, whatever else happens
                // Those that have ended count until they are joined.
                _ = handlers.join_next(), if handlers.len() >= concurrency => continue,
                // A waiting Get lasts half a minute; a shorter one would notice a lost service sooner.
                leased = self.lease_as(&mut name, [std::mem::take(&mut pause), Duration::from_secs(30)], lasts),
                    if handlers.len() < concurrency => leased,
                () = &mut stop => break Ok(()),
            } {
                Ok(lease) => {
                    // A panic before there is a future drops the lease, as one in it does.
                    let job = catch_unwind(AssertUnwindSafe(|| lease.map(|it| handle(it.clone(), handler(it)))));
                    job.ok().flatten().map(|job| handlers.spawn(self.client.left_behind.track_future(job)));
                }
                Err(error) if error.is(ErrorReason::QueueDrained) => break Ok(()),
                Err(error) if !error.is_passing() => break Err(error),
                Err(error) => {
                    warn!(queue = self.name, %error, "trying again until it works");
                    pause = backoff(5, &error); // the call itself was made again sooner
                }
            }
        };
        while handlers.join_next().await.is_some() {}
        ended
    }

    /// Tells where messages are, each at once and then whenever that changes, until the last of them is finished.
    ///
    /// `attended`: ending the watch, also by a broken connection, withdraws those that still wait. It asks anew when
    /// the stream breaks, for as long as the service is away; then each is told at once again, also how it ended, while
    /// that is remembered. A stream that was served until its token expired is opened once more, with the token of now.
    /// A message that is not known is finished with `Outcome::Unspecified`. At most 10,000 ids, each counted once.
    ///
    /// Fails with what would not go away by itself, such as QUEUE_NOT_FOUND.
    pub fn watch(&self, ids: impl IntoIterator<Item = impl Into<String>>, attended: bool) -> Watch {
        let mut left: BTreeSet<String> = ids.into_iter().map(Into::into).collect();
        let (queue, mut answers, mut failures) = (self.clone(), None, 1); // 0: since there was an answer
        Box::pin(try_stream! {
            while !left.is_empty() {
                // The first comes at once; of later ones nobody knows when.
                let patience = if answers.is_none() { PATIENCE } else { LONGEST_SPAN };
                let told = async {
                    if answers.is_none() {
                        let subject = Some(Subject::Messages(MessageIds { ids: Vec::from_iter(left.clone()), attended }));
                        let request = WatchPositionRequest { queue: queue.name.clone(), subject };
                        answers = Some(queue.client.queues().watch_position(request).await?.into_inner());
                    }
                    let told = answers.as_mut().expect("it is open").message().await?;
                    told.ok_or_else(|| Status::unavailable("the stream ended before its last message"))
                };
                let late = |_| Err(Status::unavailable("the first answer of the stream did not come in time"));
                match timeout(patience, told).await.unwrap_or_else(late).map_err(Error::from) {
                    Ok(told) => {
                        failures = 0;
                        left.retain(|id| !matches!(&told.event, Some(Event::Finished(end)) if end.id == *id));
                        yield told;
                    }
                    Err(error) if !error.is_passing() && (failures > 0 || !OF_CALLERS.contains(&error.code)) => Err(error)?,
                    Err(error) => {
                        (answers, failures) = (None, failures + 1);
                        warn!(queue = queue.name, %error, "the watch is broken, and opened again");
                        sleep(backoff(failures, &error)).await;
                    }
                }
            }
        })
    }
}

async fn handle<E: Display>(lease: Arc<Lease>, work: impl Future<Output = Result<Vec<u8>, E>>) {
    let done = work.await.map_err(|error| error.to_string());
    lease.finish(done).await.unwrap_or_else(|error| warn!(id = lease.message.id, %error, "handled, but not settled"));
}
