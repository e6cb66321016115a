//! One queue, seen by a client: puts into it, and leases from it.

use std::{sync::Arc, time::Duration};

use tokio::sync::OnceCell;
use tonic::Code;

use crate::client::{ATTEMPTS, Client, new_attempt_id, span};
use crate::v1::{self, DescribeRequest, ErrorReason, GetRequest, Message, OnDuplicate, PutRequest, PutResult};
use crate::{error::Error, lease::Lease};

/// How a put is made. The default does not wait for room, and refuses ids that are known.
#[derive(Clone, Debug, Default)]
pub struct PutOptions {
    /// How long to wait for room.
    pub wait: Duration,
    /// What to do with ids that are known already.
    pub on_duplicate: OnDuplicate,
    /// Who puts, for people who look, and for who watches where it stands while it is blocked.
    pub producer: String,
}

/// How a message is leased. The default does not wait.
#[derive(Clone, Debug, Default)]
pub struct LeaseOptions {
    /// How long to wait for a message.
    pub wait: Duration,
    /// How long the lease lasts if nothing extends it. `None`: as the queue's policy says.
    pub lease: Option<Duration>,
    /// Who works, for people who look.
    pub consumer: String,
}

/// A handle on the queue of one name. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Queue {
    pub(crate) client: Client,
    pub(crate) name: String,
    pub(crate) policy_lease: Arc<OnceCell<Duration>>, // as it was when this handle first asked
}

impl Queue {
    /// Puts one message, or a payload. With an id it is idempotent, and made again if its answer was lost.
    ///
    /// # Errors
    /// QUEUE_NOT_FOUND, QUEUE_CLOSED, QUEUE_FULL, DUPLICATE_MESSAGE, ROLE_IN_USE, TOO_LARGE, STORE_FULL.
    pub async fn put(&self, message: impl Into<Message>, options: PutOptions) -> Result<PutResult, Error> {
        let mut result = self.put_many(vec![message.into()], options).await?.pop().unwrap_or_default();
        result.error.take().map_or(Ok(result), |status| Err(status.into()))
    }

    /// Puts a batch of at most `Limits.max_batch_messages` in order; one result per message, where `error` says why one
    /// was refused. While a span of OpenTelemetry is current (feature `opentelemetry`), its context goes into the headers.
    ///
    /// # Errors
    /// As [`Queue::put`], if every message was refused for the same reason.
    pub async fn put_many(&self, messages: Vec<Message>, options: PutOptions) -> Result<Vec<PutResult>, Error> {
        #[cfg(feature = "opentelemetry")]
        let messages = crate::trace::inject(messages);
        let is_safe = messages.iter().all(|message| !message.id.is_empty());
        let is_rejecting = !matches!(options.on_duplicate, OnDuplicate::Keep | OnDuplicate::Replace);
        let (queue, producer, wait) = (self.name.clone(), options.producer, Some(span(options.wait)));
        let on_duplicate = options.on_duplicate.into();
        let request = PutRequest { queue, messages, wait, on_duplicate, producer, ..Default::default() };
        // What a lost attempt has put is then answered as kept, and not refused.
        let keep = |put: &mut PutRequest| {
            put.set_on_duplicate(if is_rejecting { OnDuplicate::Keep } else { put.on_duplicate() })
        };
        let (mut response, is_again) = self.client.repeat(request, None, ATTEMPTS, is_safe, keep).await?;
        for result in response.results.iter_mut().filter(|result| is_again && is_rejecting && result.body_differs) {
            let (code, message) = (Code::AlreadyExists.into(), "another message with this id is known".to_owned());
            let metadata =
                [("queue", &self.name), ("id", &result.id)].map(|(key, value)| (key.to_owned(), value.clone())).into();
            result.error = Some(v1::Status { code, message, reason: ErrorReason::DuplicateMessage.into(), metadata });
        }
        Ok(response.results)
    }

    /// Leases one message; `None` if none came in time. See [`Lease`]. Dropping the call gives back what it leased.
    ///
    /// # Errors
    /// QUEUE_NOT_FOUND, QUEUE_DRAINED, QUEUE_DELETED, QUEUE_PAUSED, ROLE_IN_USE.
    pub async fn lease(&self, options: &LeaseOptions) -> Result<Option<Lease>, Error> {
        self.fetch(options, &new_attempt_id(), false).await
    }

    /// The same, by a name of its own: while leases of an attempt of this name live, it brings those once more.
    pub(crate) async fn fetch(
        &self,
        options: &LeaseOptions,
        name: &str,
        is_again: bool,
    ) -> Result<Option<Lease>, Error> {
        let policy = async || {
            let queue = self.client.call(DescribeRequest { queue: self.name.clone() }).await?.queue;
            let lease = queue.and_then(|queue| queue.policy?.lease?.try_into().ok());
            lease.ok_or_else(|| Error::own(Code::Internal, "the queue's policy names no lease"))
        };
        let lease = match options.lease {
            Some(lease) => lease,
            None => *self.policy_lease.get_or_try_init(policy).await?,
        };
        let (queue, consumer, attempt_id) = (self.name.clone(), options.consumer.clone(), name.to_owned());
        let (wait, lasts) = (Some(span(options.wait)), Some(span(lease)));
        let request = GetRequest { queue, wait, lease: lasts, consumer, attempt_id, ..Default::default() };
        let (response, was_lost) = self.client.repeat(request, None, ATTEMPTS, true, |_| ()).await?;
        let delivery = response.deliveries.into_iter().next();
        Ok(delivery.map(|delivery| Lease::new(self.clone(), delivery, lease, is_again || was_lost)))
    }
}

impl<T: Into<Vec<u8>>> From<T> for Message {
    fn from(payload: T) -> Self {
        Message { payload: payload.into(), ..Default::default() }
    }
}
