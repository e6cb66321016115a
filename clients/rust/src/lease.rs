//! A message in my hands: settles it, and keeps its lease alive while I work on it.

use std::sync::{Arc, Weak};
use std::{collections::HashMap, fmt::Display, ops::Deref, time::Duration};

use tokio::time::{sleep, timeout};
use tokio::{select, sync::watch};
use tonic::Code;
use tracing::warn;

use crate::client::{ATTEMPTS, Call, backoff, span};
use crate::v1::{AckRequest, DelayRequest, Delivery, ErrorReason, ExtendRequest, Message, Progress};
use crate::v1::{SettleResult, Settled, delay_request::Available};
use crate::{error::Error, queue::Queue};

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
    queue: Queue,
    delivery: Delivery,
    lasts: Duration,
    state: watch::Sender<State>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Held,
    Settling, // what an Extend says meanwhile does not count: the Ack may have overtaken it
    Settled,
    Lost,
}

impl State {
    fn is_over(self) -> bool {
        matches!(self, State::Settled | State::Lost)
    }
}

impl Lease {
    /// `is_old`: it was given to an earlier attempt of the call that brought it, so it may lapse sooner.
    pub(crate) fn new(queue: Queue, mut delivery: Delivery, lasts: Duration, is_old: bool) -> Self {
        delivery.message.get_or_insert_default();
        let held = Arc::new(Held { queue, delivery, lasts, state: watch::Sender::new(State::Held) });
        tokio::spawn(keep_alive(Arc::downgrade(&held), held.state.subscribe(), lasts / 3, is_old));
        Lease(held)
    }

    /// The message itself.
    pub fn message(&self) -> &Message {
        self.message.as_ref().expect("it was set when the lease was made")
    }

    /// Settles the message for good; `result` (at most 4096 bytes) goes to those who watch it.
    ///
    /// # Errors
    /// LEASE_STALE or LEASE_GONE if this lease has no say any more.
    pub async fn ack(&self, result: impl Into<Vec<u8>>) -> Result<(), Error> {
        let (queue, leases) = self.0.named();
        let request = AckRequest { queue, leases, result: result.into() };
        self.0.settle(request, |response| response.results, false).await
    }

    /// Gives the message back at the cost of an attempt: after a span (zero: now, at the head), or with `None` by the
    /// queue's backoff. `reason`, cut at 1024 bytes, is kept with the message.
    ///
    /// # Errors
    /// LEASE_STALE or LEASE_GONE if this lease has no say any more.
    pub async fn delay(&self, delay: Option<Duration>, reason: &str) -> Result<(), Error> {
        self.0.settle(self.0.giving_back(delay, reason, false), |response| response.results, true).await
    }

    /// Tells watchers how far the work is, 0.0 to 1.0, with a word about it, and extends the lease by its span.
    ///
    /// # Errors
    /// LEASE_STALE or LEASE_GONE if this lease has no say any more.
    pub async fn progress(&self, fraction: f64, note: impl Into<String>) -> Result<(), Error> {
        self.0.extend(Some(Progress { fraction, note: note.into() })).await
    }

    /// The service said that somebody else has, or had, the message: what is done with it now has no say.
    pub fn is_lost(&self) -> bool {
        *self.0.state.borrow() == State::Lost
    }

    /// Returns when the lease is lost; never if it is settled before.
    pub async fn lost(&self) {
        let _ = self.0.state.subscribe().wait_for(|state| *state == State::Lost).await; // its sender is here
    }

    /// Does some work and settles the message by how it ends, unless the work did: `Ok` acks it with these bytes as its
    /// result (none: empty), `Err` gives it to the queue's backoff with the error's text as the reason. If this is
    /// dropped before, the message is given back at once and for free.
    ///
    /// # Errors
    /// What the work failed with; LEASE_STALE or LEASE_GONE if its ack came too late to count.
    pub async fn scope<E>(self, work: impl AsyncFnOnce(Lease) -> Result<Vec<u8>, E>) -> Result<(), E>
    where
        E: Display + From<Error>,
    {
        let done = work(self.clone()).await;
        let settled = self.conclude(&done).await;
        done.and_then(|_| settled.map_err(E::from))
    }

    pub(crate) async fn conclude<E: Display>(&self, done: &Result<Vec<u8>, E>) -> Result<(), Error> {
        match done {
            _ if *self.0.state.borrow() == State::Settled => Ok(()),
            Ok(result) => self.ack(result.clone()).await,
            Err(error) => self.delay(None, &error.to_string()).await,
        }
    }
}

impl Deref for Lease {
    type Target = Delivery;

    fn deref(&self) -> &Delivery {
        &self.0.delivery
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.state.borrow().is_over() {
            let (client, request) = (self.queue.client.clone(), self.giving_back(Some(Duration::ZERO), "", true));
            let give_back = async move {
                client
                    .call(request)
                    .await
                    .map(drop)
                    .unwrap_or_else(|error| warn!(%error, "could not give a message back"))
            };
            self.queue.client.left_behind.spawn_on(give_back, &self.queue.client.runtime);
        }
    }
}

impl Held {
    fn named(&self) -> (String, Vec<String>) {
        (self.queue.name.clone(), vec![self.delivery.lease.clone()])
    }

    fn giving_back(&self, delay: Option<Duration>, reason: &str, keep_attempt: bool) -> DelayRequest {
        let (queue, leases) = self.named();
        let fits = reason.char_indices().take_while(|(at, letter)| at + letter.len_utf8() <= LONGEST_REASON);
        let (reason, available) = (fits.map(|(_, letter)| letter).collect(), delay.map(span).map(Available::Delay));
        DelayRequest { queue, leases, available, reason, keep_attempt, ..Default::default() }
    }

    /// `is_forgiving`: if an answer was lost, STALE and GONE most likely say that this very call has done it.
    async fn settle<R: Call>(
        &self,
        request: R,
        results: fn(R::Response) -> Vec<SettleResult>,
        is_forgiving: bool,
    ) -> Result<(), Error> {
        let before = self.state.send_replace(State::Settling);
        let answer = self.queue.client.repeat(request, None, ATTEMPTS, true, |_| ()).await;
        let (state, told) = match answer.map(|(response, is_again)| (self.no_say(&results(response)), is_again)) {
            Ok((Some(error), is_again)) if !(is_again && is_forgiving) => (State::Lost, Err(error)),
            Ok(_) => (State::Settled, Ok(())),
            Err(error) => (before, Err(error)),
        };
        self.state.send_replace(state);
        told
    }

    async fn extend(&self, progress: Option<Progress>) -> Result<(), Error> {
        let (queue, leases) = self.named();
        let response = self.queue.client.call(ExtendRequest { queue, leases, lease: Some(span(self.lasts)), progress });
        let Some(error) = self.no_say(&response.await?.results) else { return Ok(()) };
        if *self.state.borrow() == State::Held {
            self.state.send_replace(State::Lost);
        }
        Err(error)
    }

    fn no_say(&self, results: &[SettleResult]) -> Option<Error> {
        let (code, reason, text) = match results.first()?.settled() {
            Settled::Stale => (Code::FailedPrecondition, ErrorReason::LeaseStale, "somebody newer has a say"),
            Settled::Gone => (Code::NotFound, ErrorReason::LeaseGone, "the lease, its message or its queue is gone"),
            _ => return None,
        };
        Some(Error::new(code, reason, HashMap::from([("queue".to_owned(), self.queue.name.clone())]), text))
    }
}

/// Extends the lease at a third of its span until it is settled, lost or dropped.
async fn keep_alive(lease: Weak<Held>, mut state: watch::Receiver<State>, pause: Duration, is_old: bool) {
    let mut failures = u32::from(is_old); // an old one is extended soon
    loop {
        select! {
            _ = state.wait_for(|state| state.is_over()) => return, // or its sender is dropped
            () = sleep(if failures == 0 { pause } else { pause.min(backoff(failures, None)) }) => {}
        }
        let Some(held) = lease.upgrade() else { return };
        let is_extended = matches!(timeout(pause.max(SHORTEST_TRY), held.extend(None)).await, Ok(Ok(())));
        failures = if is_extended { 0 } else { failures + 1 };
        if *held.state.borrow() == State::Lost {
            warn!(id = held.delivery.message.as_ref().map(|message| &*message.id), "a lease is lost");
        }
    }
}
