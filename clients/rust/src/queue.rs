//! One queue, seen by a client: puts into it, and leases from it.

use std::{sync::Arc, time::Duration};

use crate::client::{Client, random, span};
use crate::v1::{GetRequest, Message, OnDuplicate, PutRequest, PutResult};
use crate::{error::Error, lease::Lease};

/// A handle on the queue of one name. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Queue {
    pub(crate) client: Client,
    pub(crate) name: String,
}

impl Queue {
    /// Puts messages, or payloads, at most `Limits.max_batch_messages`, in order, and waits so long for room; ids that are
    /// known are refused. One result per message, where `error` says why one was refused. If all have ids it is made
    /// again where its answer was lost; what it has put then stays. While a span of OpenTelemetry is current (feature
    /// `opentelemetry`), its context goes into the headers.
    ///
    /// # Errors
    /// QUEUE_NOT_FOUND, QUEUE_CLOSED, ROLE_IN_USE, STORE_FULL; QUEUE_FULL, DUPLICATE_MESSAGE and TOO_LARGE, if every
    /// message was refused for the same reason.
    pub async fn put(
        &self,
        messages: impl IntoIterator<Item = impl Into<Message>>,
        wait: Duration,
    ) -> Result<Vec<PutResult>, Error> {
        let messages: Vec<_> = messages.into_iter().map(Into::into).collect();
        #[cfg(feature = "opentelemetry")]
        let messages = crate::trace::inject(messages);
        let is_safe = messages.iter().all(|message| !message.id.is_empty());
        let request = PutRequest { queue: self.name.clone(), messages, wait: Some(span(wait)), ..Default::default() };
        let keep = |put: &mut PutRequest| put.set_on_duplicate(OnDuplicate::Keep);
        Ok(self.client.repeat(request, is_safe, keep).await?.results)
    }

    /// Leases one message; `None` if none came within `wait`. `lasts`: how long the lease lasts if nothing extends it, as
    /// when this process dies; `None`: as the queue's policy says. Dropping the call gives back what it leased.
    ///
    /// # Errors
    /// QUEUE_NOT_FOUND, QUEUE_DRAINED, QUEUE_DELETED, QUEUE_PAUSED, ROLE_IN_USE.
    pub async fn lease(&self, wait: Duration, lasts: Option<Duration>) -> Result<Option<Arc<Lease>>, Error> {
        let (wait, lease) = (Some(span(wait)), lasts.map(span));
        let attempt_id = format!("{:016x}{:016x}", random(), random()); // no other Get has it
        let request = GetRequest { queue: self.name.clone(), wait, lease, attempt_id, ..Default::default() };
        let delivery = self.client.repeat(request, true, |_| ()).await?.deliveries.pop();
        Ok(delivery.map(|delivery| Lease::new(self.clone(), delivery, lasts)))
    }
}

impl<T: Into<Vec<u8>>> From<T> for Message {
    fn from(payload: T) -> Self {
        Message { payload: payload.into(), ..Default::default() }
    }
}
