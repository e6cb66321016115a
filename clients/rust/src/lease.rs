//! A message in my hands: settles it, and keeps its lease alive while I work on it.

use std::{fmt::Display, sync::Arc, thread, time::Duration, time::SystemTime};

use tokio::{sync::Mutex, time::Instant, time::MissedTickBehavior, time::interval_at, time::timeout};
use {tokio_util::sync::CancellationToken, tonic::Code, tonic::Status, tracing::warn};

use crate::{client::PATIENCE, client::span, error::Error, queue::Queue, v1::delay_request::Available, v1::*};

const SHORTEST_POLICY: Duration = Duration::from_millis(100); // no queue's leases last shorter

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
    held: Arc<Held>,
}

/// What calls on a lease need. The keeper has no more of it, so that the lease ends where its last holder drops it.
#[derive(Debug)]
struct Held {
    queue: Queue,
    named: (String, Vec<String>), // its queue and token
    lasts: Option<Duration>,      // None: as the queue's policy says
    span: Duration,               // which is that, or what it seems to be
    lost: CancellationToken,
    settling: Mutex<()>,        // locked by calls that may settle it, which go one after the other
    settled: CancellationToken, // or dropped
}

impl Lease {
    /// `is_old`: it may have been given before the call that was answered, so nobody knows how long it still lasts.
    pub(crate) fn new(mut queue: Queue, mut delivery: Delivery, lasts: Option<Duration>, is_old: bool) -> Arc<Self> {
        queue.client.attempts = u32::MAX; // while there is time
        queue.client.call_timeout.get_or_insert(PATIENCE);
        let span = lasts.unwrap_or_else(|| told_span(&delivery).unwrap_or_default().max(SHORTEST_POLICY));
        let message = delivery.message.take().unwrap_or_default();
        let named = (queue.name.clone(), vec![delivery.lease.clone()]);
        let (lost, settling, settled) = Default::default();
        let held = Arc::new(Held { queue, named, lasts, span, lost, settling, settled });
        tokio::spawn(keep_alive(held.clone(), message.id.clone(), span / 3, is_old));
        Arc::new(Lease { message, delivery, lost: held.lost.clone(), held })
    }

    /// Settles the message for good; `result` (at most 4096 bytes) goes to those who watch it. While the service is away
    /// it is tried for as long as the lease may live.
    ///
    /// # Errors
    /// LEASE_STALE or LEASE_GONE if this lease has no say any more; STALE, too, if the message lies with the dead.
    pub async fn ack(&self, result: impl Into<Vec<u8>>) -> Result<(), Error> {
        let (queue, leases) = self.held.named.clone();
        self.held.call(AckRequest { queue, leases, result: result.into() }, |answer| answer.results).await
    }

    /// Gives the message back at the cost of an attempt: after a span (zero: now, at the head), or with `None` by the
    /// queue's backoff. `reason`, cut at 256 letters, is kept with the message.
    ///
    /// # Errors
    /// LEASE_STALE or LEASE_GONE if this lease has no say any more.
    pub async fn delay(&self, delay: Option<Duration>, reason: &str) -> Result<(), Error> {
        self.held.call(self.held.giving_back(delay, reason, false), |answer| answer.results).await
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
        self.held.extend(Some(Progress { fraction, note: note.into() })).await
    }
}

impl Held {
    fn giving_back(&self, delay: Option<Duration>, reason: &str, keep_attempt: bool) -> DelayRequest {
        let ((queue, leases), available) = (self.named.clone(), delay.map(span).map(Available::Delay));
        let reason = reason.chars().take(256).collect(); // letters, of at most 1024 bytes
        DelayRequest { queue, leases, available, reason, keep_attempt, ..Default::default() }
    }

    async fn extend(&self, progress: Option<Progress>) -> Result<(), Error> {
        let ((queue, leases), lease) = (self.named.clone(), self.lasts.map(span));
        self.call(ExtendRequest { queue, leases, lease, progress }, |answer| answer.results).await
    }

    /// Makes a call on the lease, unless it is settled. An Extend goes beside others, whose answers may not come; what
    /// it is told counts when nothing settles the lease meanwhile: one that an Ack overtakes finds it gone.
    async fn call<R: Call>(&self, request: R, results: fn(R::Response) -> Vec<SettleResult>) -> Result<(), Error> {
        let settling = if R::NAME == "Extend" { None } else { Some(self.settling.lock().await) };
        if self.settled.is_cancelled() {
            return Ok(());
        }
        let mut client = self.queue.client.clone();
        client.call_timeout = client.call_timeout.max((R::NAME == "Ack").then_some(self.span));
        let said = results(client.call(request).await?).first().map(SettleResult::settled);
        let _turn = if settling.is_some() { settling } else { Some(self.settling.lock().await) };
        // Dead before this call: a Delay may have done it itself, if the lease was not known to be lost.
        let was_dead = said == Some(Settled::Dead) && (R::NAME == "Ack" || self.lost.is_cancelled());
        let (code, reason) = match said {
            _ if self.settled.is_cancelled() || said == Some(Settled::Extended) => return Ok(()),
            _ if was_dead || said == Some(Settled::Stale) => (Code::FailedPrecondition, ErrorReason::LeaseStale),
            Some(Settled::Gone) => (Code::NotFound, ErrorReason::LeaseGone),
            _ => return Ok(()).inspect(|()| self.settled.cancel()),
        };
        self.lost.cancel();
        let metadata = [("queue".to_owned(), self.queue.name.clone())].into();
        Err(Error { reason, metadata, ..Status::new(code, "too late").into() })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Held { queue: Queue { client, .. }, settled, .. } = &*self.held;
        if settled.is_cancelled() || self.lost.is_cancelled() {
            return;
        }
        settled.cancel(); // nothing extends it any more
        let (is_free, reason) = if thread::panicking() { (false, "the work on it panicked") } else { (true, "") };
        let request = self.held.giving_back(is_free.then_some(Duration::ZERO), reason, is_free);
        let (by, is_left) = (client.clone(), |error: &Error| warn!(%error, "a lease is left"));
        client.left_behind.spawn_on(async move { by.call(request).await.inspect_err(is_left) }, &client.runtime);
    }
}

/// By the store's clock it was given when its message had waited so long; of a foreign message nobody may know.
fn told_span(delivery: &Delivery) -> Option<Duration> {
    let given = SystemTime::try_from(delivery.put_at?).ok()? + Duration::try_from(delivery.waited?).ok()?;
    SystemTime::try_from(delivery.lease_expires_at?).ok()?.duration_since(given).ok()
}

/// Extends the lease at a third of its span, an old one also at once, until it is settled, lost or dropped.
async fn keep_alive(held: Arc<Held>, id: String, pause: Duration, is_old: bool) {
    let mut ticks = interval_at(Instant::now() + pause * u32::from(!is_old), pause);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while held.settled.run_until_cancelled(ticks.tick()).await.is_some() && !held.lost.is_cancelled() {
        let told = timeout(pause.max(SHORTEST_POLICY), held.extend(None)).await;
        let _ = told.map(|it| it.inspect_err(|error| warn!(id, %error, "could not extend a lease")));
    }
}
