//! A message in my hands: settles it, and keeps its lease alive while I work on it.

use std::{fmt::Display, sync::Arc, sync::Weak, thread, time::Duration, time::SystemTime};

use tokio::{sync::Mutex, time::Instant, time::MissedTickBehavior, time::interval_at, time::timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};
use tracing::warn;

use crate::v1::{AckRequest, DelayRequest, Delivery, ExtendRequest, Message, Progress, SettleResult, Settled};
use crate::{client::Call, client::span, error::DOMAIN, error::Error, queue::Queue, v1::delay_request::Available};

const SHORTEST_POLICY: Duration = Duration::from_millis(100); // no queue's leases last shorter
const LONGEST_REASON: usize = 256; // in letters; 1024 bytes at most

/// The right to work on one message until a deadline, and the message. Once it is settled, calls on it do nothing.
///
/// It keeps itself alive (Extend at a third of its span). When it is dropped and was not settled, the message is given
/// back at once and for free, or, if that is a panic's doing, to the queue's backoff. A task does so, which
/// [`Client::settled`](crate::Client::settled) waits for.
#[derive(Debug)]
pub struct Lease {
    /// The message itself.
    pub message: Message,
    /// What the service told of it, but for the message: which attempt this is, its ticket, and more.
    pub delivery: Delivery,
    /// Cancelled when the service says that somebody else has, or had, the message, or that it died: what is done with
    /// it now has no say.
    pub lost: CancellationToken,
    queue: Queue,
    lasts: Option<Duration>, // None: as the queue's policy says
    is_settled: Mutex<bool>, // locked during calls, so that none overtakes the one that settles
}

impl Lease {
    pub(crate) fn new(mut queue: Queue, mut delivery: Delivery, lasts: Option<Duration>) -> Arc<Self> {
        queue.client.attempts = u32::MAX; // while there is time
        let span = lasts.or_else(|| told_span(&delivery)).unwrap_or(SHORTEST_POLICY);
        let (message, (lost, is_settled)) = (delivery.message.take().unwrap_or_default(), Default::default());
        let lease = Arc::new(Lease { message, delivery, lost, queue, lasts, is_settled });
        tokio::spawn(keep_alive(Arc::downgrade(&lease), span / 3));
        lease
    }

    /// Settles the message for good; `result` (at most 4096 bytes) goes to those who watch it.
    ///
    /// # Errors
    /// LEASE_STALE or LEASE_GONE if this lease has no say any more; STALE, too, if the message lies with the dead.
    pub async fn ack(&self, result: impl Into<Vec<u8>>) -> Result<(), Error> {
        let (queue, leases) = self.named();
        self.call(AckRequest { queue, leases, result: result.into() }, |answer| answer.results).await
    }

    /// Gives the message back at the cost of an attempt: after a span (zero: now, at the head), or with `None` by the
    /// queue's backoff. `reason`, cut at 256 letters, is kept with the message.
    ///
    /// # Errors
    /// LEASE_STALE or LEASE_GONE if this lease has no say any more.
    pub async fn delay(&self, delay: Option<Duration>, reason: &str) -> Result<(), Error> {
        self.call(self.giving_back(delay, reason, false), |answer| answer.results).await
    }

    /// Settles the message by how the work on it ended, unless the work did: `Ok` acks it with these bytes as its
    /// result (none: empty), `Err` gives it to the queue's backoff with the error's text as the reason. So does an ack
    /// that fails, perhaps because the result is too large; its error is returned.
    ///
    /// # Errors
    /// LEASE_STALE or LEASE_GONE if this lease has no say any more.
    pub async fn finish<E: Display>(&self, done: Result<Vec<u8>, E>) -> Result<(), Error> {
        let acked = match done {
            Ok(result) => self.ack(result).await,
            Err(error) => return self.delay(None, &error.to_string()).await,
        };
        let Err(error) = &acked else { return acked };
        let _ = self.delay(None, &error.to_string()).await; // in vain if the lease is lost
        acked
    }

    /// Tells watchers how far the work is, 0.0 to 1.0, with a word about it, and extends the lease by its span.
    ///
    /// # Errors
    /// LEASE_STALE or LEASE_GONE if this lease has no say any more.
    pub async fn progress(&self, fraction: f64, note: impl Into<String>) -> Result<(), Error> {
        self.extend(Some(Progress { fraction, note: note.into() })).await
    }

    fn named(&self) -> (String, Vec<String>) {
        (self.queue.name.clone(), vec![self.delivery.lease.clone()])
    }

    fn giving_back(&self, delay: Option<Duration>, reason: &str, keep_attempt: bool) -> DelayRequest {
        let ((queue, leases), available) = (self.named(), delay.map(span).map(Available::Delay));
        let reason = reason.chars().take(LONGEST_REASON).collect();
        DelayRequest { queue, leases, available, reason, keep_attempt, ..Default::default() }
    }

    async fn extend(&self, progress: Option<Progress>) -> Result<(), Error> {
        let ((queue, leases), lease) = (self.named(), self.lasts.map(span));
        self.call(ExtendRequest { queue, leases, lease, progress }, |answer| answer.results).await
    }

    /// Makes a call on the lease, unless it is settled.
    async fn call<R: Call>(&self, request: R, results: fn(R::Response) -> Vec<SettleResult>) -> Result<(), Error> {
        let mut is_settled = self.is_settled.lock().await;
        if *is_settled {
            return Ok(());
        }
        let said = results(self.queue.client.call(request).await?).first().map(SettleResult::settled);
        // Dead before this call: a Delay may have done it itself, if the lease was not known to be lost.
        let was_dead = said == Some(Settled::Dead) && (R::NAME == "Ack" || self.lost.is_cancelled());
        *is_settled = !was_dead && !matches!(said, Some(Settled::Extended | Settled::Stale | Settled::Gone));
        let (code, reason, text) = match said {
            Some(Settled::Stale) => (Code::FailedPrecondition, "LEASE_STALE", "somebody newer has a say"),
            Some(_) if was_dead => (Code::FailedPrecondition, "LEASE_STALE", "too late: the message is dead"),
            Some(Settled::Gone) => (Code::NotFound, "LEASE_GONE", "the lease, its message or its queue is gone"),
            _ => return Ok(()),
        };
        self.lost.cancel();
        let told = [("queue".to_owned(), self.queue.name.clone())];
        Err(Status::with_error_details(code, text, ErrorDetails::with_error_info(reason, DOMAIN, told)).into())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if *self.is_settled.get_mut() || self.lost.is_cancelled() {
            return;
        }
        let (is_free, reason) = if thread::panicking() { (false, "the work on it panicked") } else { (true, "") };
        let request = self.giving_back(is_free.then_some(Duration::ZERO), reason, is_free);
        let client = self.queue.client.clone();
        let give_back = async move { client.call(request).await.inspect_err(|error| warn!(%error, "a lease is left")) };
        self.queue.client.left_behind.spawn_on(give_back, &self.queue.client.runtime);
    }
}

/// By the store's clock it was given when its message had waited so long; of a foreign message nobody may know.
fn told_span(delivery: &Delivery) -> Option<Duration> {
    let given = SystemTime::try_from(delivery.put_at?).ok()? + Duration::try_from(delivery.waited?).ok()?;
    SystemTime::try_from(delivery.lease_expires_at?).ok()?.duration_since(given).ok()
}

/// Extends the lease at a third of its span until it is settled, lost or dropped.
async fn keep_alive(lease: Weak<Lease>, pause: Duration) {
    let (mut ticks, patience) = (interval_at(Instant::now() + pause, pause), pause.max(SHORTEST_POLICY));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(lease) = lease.upgrade().filter(|lease| !lease.lost.is_cancelled()) else { return };
        if let Ok(Err(error)) = timeout(patience, lease.extend(None)).await {
            warn!(id = lease.message.id, %error, "could not extend a lease");
        }
    }
}
