//! One queue, seen by a client: puts into it, and leases from it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OnceCell;
use tonic::Code;

use crate::client::{CallOptions, Client, random};
use crate::error::Error;
use crate::lease::Lease;
use crate::message::{from_wire, to_wire};
use crate::v1::{self, DescribeRequest, ErrorReason, GetRequest, Message, OnDuplicate, PutRequest, PutResult};

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
    client: Client,
    name: Arc<str>,
    policy_lease: Arc<OnceCell<Duration>>,
}

impl Queue {
    pub(crate) fn new(client: Client, name: String) -> Self {
        Queue { client, name: name.into(), policy_lease: Arc::default() }
    }

    /// The queue's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The client that it is seen by.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Puts one message, or a payload. With an id it is idempotent, and made again if its answer was lost.
    ///
    /// # Errors
    /// QUEUE_NOT_FOUND, QUEUE_CLOSED, QUEUE_FULL, DUPLICATE_MESSAGE, ROLE_IN_USE, TOO_LARGE, STORE_FULL.
    pub async fn put(&self, message: impl Into<Message>, options: PutOptions) -> Result<PutResult, Error> {
        let results = self.put_many(vec![message.into()], options).await?;
        let mut result = results.into_iter().next().unwrap_or_default();
        match result.error.take() {
            Some(status) => Err(status.into()),
            None => Ok(result),
        }
    }

    /// Puts a batch of at most `Limits.max_batch_messages` in order; one result per message, where `error` says why one
    /// was refused. While a span of OpenTelemetry is current (feature `opentelemetry`), its context goes into the headers.
    ///
    /// # Errors
    /// As [`Queue::put`], if every message was refused for the same reason.
    pub async fn put_many(&self, messages: Vec<Message>, options: PutOptions) -> Result<Vec<PutResult>, Error> {
        #[cfg(feature = "opentelemetry")]
        let messages = crate::trace::inject(messages);
        let is_rejecting = !matches!(options.on_duplicate, OnDuplicate::Keep | OnDuplicate::Replace);
        let request = PutRequest {
            queue: self.name.to_string(),
            messages,
            wait: Some(to_wire(options.wait)),
            on_duplicate: options.on_duplicate.into(),
            producer: options.producer,
            ..Default::default()
        };
        // What a lost attempt has put is then answered as kept, and not refused.
        let keep = |request: &mut PutRequest| {
            if is_rejecting {
                request.set_on_duplicate(OnDuplicate::Keep);
            }
        };
        let (mut response, is_again) = self.client.repeat(request, &CallOptions::default(), keep).await?;
        for result in response.results.iter_mut().filter(|_| is_again && is_rejecting) {
            if result.deduplicated && result.body_differs {
                result.error = Some(v1::Status {
                    code: Code::AlreadyExists.into(),
                    message: "another message with this id is known".to_owned(),
                    reason: ErrorReason::DuplicateMessage.into(),
                    metadata: self.metadata([("id".to_owned(), result.id.clone())]),
                });
            }
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
        attempt_id: &str,
        is_again: bool,
    ) -> Result<Option<Lease>, Error> {
        let span = match options.lease {
            Some(span) => span,
            None => self.policy_lease().await?,
        };
        let request = GetRequest {
            queue: self.name.to_string(),
            wait: Some(to_wire(options.wait)),
            lease: Some(to_wire(span)),
            consumer: options.consumer.clone(),
            attempt_id: attempt_id.to_owned(),
            ..Default::default()
        };
        let (response, was_lost) = self.client.repeat(request, &CallOptions::default(), |_| ()).await?;
        let delivery = response.deliveries.into_iter().next();
        Ok(delivery.map(|delivery| Lease::new(self.clone(), delivery, span, is_again || was_lost)))
    }

    /// How long a lease lasts by the policy, as it was when this handle first asked.
    async fn policy_lease(&self) -> Result<Duration, Error> {
        let ask = async || {
            let request = DescribeRequest { queue: self.name.to_string() };
            let policy = self.client.call(request).await?.queue.and_then(|queue| queue.policy).unwrap_or_default();
            Ok(from_wire(policy.lease.as_ref()).unwrap_or_default())
        };
        self.policy_lease.get_or_try_init(ask).await.copied()
    }

    /// What the errors promise about this queue.
    pub(crate) fn metadata(&self, more: impl IntoIterator<Item = (String, String)>) -> HashMap<String, String> {
        [("queue".to_owned(), self.name.to_string())].into_iter().chain(more).collect()
    }
}

/// A name for one Get that no other Get has.
pub(crate) fn new_attempt_id() -> String {
    format!("{:016x}{:016x}", random(), random())
}
