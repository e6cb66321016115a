//! A message in my hands: settles it, and keeps its lease alive while I work on it.

use std::fmt::Display;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tonic::Code;
use tracing::warn;

use crate::calls::Call;
use crate::client::{CallOptions, backoff};
use crate::error::Error;
use crate::message::to_wire;
use crate::queue::Queue;
use crate::v1::delay_request::Available;
use crate::v1::{
    AckRequest, DelayRequest, Delivery, ErrorReason, ExtendRequest, Message, Progress, SettleResult, Settled,
};

const SHORTEST_TRY: Duration = Duration::from_millis(100); // to extend a lease
const LONGEST_REASON: usize = 1024; // bytes

/// The right to work on one message until a deadline, and the message: its fields are those of [`Delivery`].
///
/// It keeps itself alive (Extend at a third of its span). When its last clone is dropped and it was not settled, the
/// message is given back at once and for free, by a task that [`Client::settled`](crate::Client::settled) waits for.
/// [`Lease::scope`] settles it at the end of some work.
#[derive(Clone, Debug)]
pub struct Lease(Arc<Held>);

/// What all clones share; its end is the end of the lease.
#[derive(Debug)]
struct Held {
    right: Arc<Right>,
    keeper: AbortHandle,
}

/// What the task that keeps it alive shares with them.
#[derive(Debug)]
struct Right {
    queue: Queue,
    delivery: Delivery,
    span: Duration,
    state: watch::Sender<State>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Held,
    Settling, // what an Extend says meanwhile does not count: the Ack may have overtaken it
    Settled,
    Lost,
}

impl Lease {
    /// `is_old`: it was given to an earlier attempt of the call that brought it, so it may lapse sooner.
    pub(crate) fn new(queue: Queue, mut delivery: Delivery, span: Duration, is_old: bool) -> Self {
        delivery.message.get_or_insert_default();
        let right = Arc::new(Right { queue, delivery, span, state: watch::Sender::new(State::Held) });
        let keeper = tokio::spawn(keep_alive(right.clone(), is_old)).abort_handle();
        Lease(Arc::new(Held { right, keeper }))
    }

    /// The message itself.
    #[must_use]
    pub fn message(&self) -> &Message {
        self.message.as_ref().expect("it was set when the lease was made")
    }

    /// The message's body.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.message().payload
    }

    /// Settles the message for good; `result` (at most 4096 bytes) goes to those who watch it.
    ///
    /// # Errors
    /// LEASE_STALE or LEASE_GONE if this lease has no say any more.
    pub async fn ack(&self, result: impl Into<Vec<u8>>) -> Result<(), Error> {
        let (queue, leases) = self.0.right.named();
        let request = AckRequest { queue, leases, result: result.into() };
        self.0.right.settle(request, |response| response.results, false).await
    }

    /// Gives the message back at the cost of an attempt: after a span (zero: now, at the head), or with `None` by the
    /// queue's backoff. `reason`, cut at 1024 bytes, is kept with the message.
    ///
    /// # Errors
    /// LEASE_STALE or LEASE_GONE if this lease has no say any more.
    pub async fn delay(&self, delay: Option<Duration>, reason: &str) -> Result<(), Error> {
        self.0.right.give_back(delay, reason, false).await
    }

    /// Gives the message back to the head of the line, now and for free: it was not worked on.
    ///
    /// # Errors
    /// LEASE_STALE or LEASE_GONE if this lease has no say any more.
    pub async fn release(&self) -> Result<(), Error> {
        self.0.right.give_back(Some(Duration::ZERO), "", true).await
    }

    /// Tells watchers how far the work is, 0.0 to 1.0, with a word about it, and extends the lease by its span.
    ///
    /// # Errors
    /// LEASE_STALE or LEASE_GONE if this lease has no say any more.
    pub async fn progress(&self, fraction: f64, note: &str) -> Result<(), Error> {
        self.0.right.extend(Some(Progress { fraction, note: note.to_owned() })).await
    }

    /// It was acked or given back through this handle.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        *self.0.right.state.borrow() == State::Settled
    }

    /// The service said that somebody else has, or had, the message: what is done with it now has no say.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        *self.0.right.state.borrow() == State::Lost
    }

    /// Returns when the lease is lost; never if it is settled before.
    pub async fn lost(&self) {
        let mut state = self.0.right.state.subscribe();
        let _ = state.wait_for(|state| *state == State::Lost).await; // its sender lives as long as this handle
    }

    /// Does some work and settles the message by how it ends, unless the work did: `Ok` acks it with these bytes as its
    /// result (none: empty), `Err` gives it to the queue's backoff with the error's text as the reason. If this is
    /// dropped before, the message is given back at once and for free.
    ///
    /// # Errors
    /// What the work failed with; LEASE_STALE or LEASE_GONE if its ack came too late to count.
    pub async fn scope<E, F>(self, work: impl FnOnce(Lease) -> F) -> Result<(), E>
    where
        E: Display + From<Error>,
        F: Future<Output = Result<Vec<u8>, E>>,
    {
        let done = work(self.clone()).await;
        let settled = self.conclude(&done).await;
        match done {
            Ok(_) => Ok(settled?),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn conclude<E: Display>(&self, done: &Result<Vec<u8>, E>) -> Result<(), Error> {
        match done {
            _ if self.is_settled() => Ok(()),
            Ok(result) => self.ack(result.clone()).await,
            Err(error) => self.delay(None, &error.to_string()).await,
        }
    }
}

impl Deref for Lease {
    type Target = Delivery;

    fn deref(&self) -> &Delivery {
        &self.0.right.delivery
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.keeper.abort();
        let right = self.right.clone();
        if !right.is_over() {
            self.right.queue.client().leave_behind(async move {
                if let Err(error) = right.give_back(Some(Duration::ZERO), "", true).await {
                    warn!(%error, "could not give a message back; its lease lapses");
                }
            });
        }
    }
}

impl Right {
    fn is_over(&self) -> bool {
        matches!(*self.state.borrow(), State::Settled | State::Lost)
    }

    fn turn_held(&self, into: State) {
        self.state.send_if_modified(|state| {
            let is_held = *state == State::Held;
            *state = if is_held { into } else { *state };
            is_held
        });
    }

    fn named(&self) -> (String, Vec<String>) {
        (self.queue.name().to_owned(), vec![self.delivery.lease.clone()])
    }

    async fn give_back(&self, delay: Option<Duration>, reason: &str, keep_attempt: bool) -> Result<(), Error> {
        let (queue, leases) = self.named();
        let available = delay.map(|delay| Available::Delay(to_wire(delay)));
        let cut = (0..=LONGEST_REASON.min(reason.len())).rev().find(|end| reason.is_char_boundary(*end));
        let reason = reason[..cut.unwrap_or(0)].to_owned();
        let request = DelayRequest { queue, leases, available, reason, keep_attempt, ..Default::default() };
        self.settle(request, |response| response.results, true).await
    }

    /// `is_forgiving`: if an answer was lost, STALE and GONE most likely say that this very call has done it.
    async fn settle<R: Call>(
        &self,
        request: R,
        results: fn(R::Response) -> Vec<SettleResult>,
        is_forgiving: bool,
    ) -> Result<(), Error> {
        self.turn_held(State::Settling);
        let answer = self.queue.client().repeat(request, &CallOptions::default(), |_| ()).await;
        let told = answer.and_then(|(response, is_again)| match self.no_say(&results(response)) {
            Some(error) if !(is_again && is_forgiving) => Err(error),
            _ => Ok(()),
        });
        let state = match &told {
            Ok(()) => State::Settled,
            Err(error) if error.is(ErrorReason::LeaseStale) || error.is(ErrorReason::LeaseGone) => State::Lost,
            Err(_) if self.is_over() => return told,
            Err(_) => State::Held,
        };
        self.state.send_replace(state);
        told
    }

    async fn extend(&self, progress: Option<Progress>) -> Result<(), Error> {
        let (queue, leases) = self.named();
        let request = ExtendRequest { queue, leases, lease: Some(to_wire(self.span)), progress };
        let (response, _) = self.queue.client().repeat(request, &CallOptions::default(), |_| ()).await?;
        let Some(error) = self.no_say(&response.results) else { return Ok(()) };
        self.turn_held(State::Lost);
        Err(error)
    }

    fn no_say(&self, results: &[SettleResult]) -> Option<Error> {
        let (code, reason, text) = match results.first().map(SettleResult::settled) {
            Some(Settled::Stale) => (Code::FailedPrecondition, ErrorReason::LeaseStale, "somebody newer has a say"),
            Some(Settled::Gone) => (Code::NotFound, ErrorReason::LeaseGone, "the lease, its message or queue is gone"),
            _ => return None,
        };
        Some(Error::new(code, reason, self.queue.metadata([]), text))
    }
}

/// Extends the lease at a third of its span until it is settled or lost.
async fn keep_alive(right: Arc<Right>, is_old: bool) {
    let pause = right.span / 3;
    let mut failures = 0;
    let mut is_due = is_old;
    while !right.is_over() {
        if !is_due {
            sleep(if failures == 0 { pause } else { pause.min(backoff(failures, None)) }).await;
        }
        is_due = false;
        match timeout(pause.max(SHORTEST_TRY), right.extend(None)).await {
            _ if right.is_over() => {}
            Ok(Ok(())) => failures = 0,
            _ => failures += 1,
        }
    }
    if *right.state.borrow() == State::Lost {
        warn!(id = right.delivery.message.as_ref().map(|message| &*message.id), "a lease is lost");
    }
}
