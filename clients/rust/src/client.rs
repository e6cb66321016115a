//! The client: one for the service, with its stubs and the calls on them.

use std::env;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tonic::{Code, Request};

use crate::calls::Call;
use crate::error::Error;
use crate::message::{from_wire, to_wire};
use crate::queue::Queue;
use crate::transport::Transport;
use crate::v1::admin_service_client::AdminServiceClient;
use crate::v1::queue_service_client::QueueServiceClient;

const MAX_RECEIVE_BYTES: usize = 64 * 1024 * 1024;
const MOST_ATTEMPTS: u32 = 5;
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);

/// Where the service is, and how long a call may take.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// "host:port" each, used in turn, as are all addresses of a name. Empty: the environment's HEADWAY_ADDRESS, where
    /// commas separate several, else 127.0.0.1:7420.
    pub addresses: Vec<String>,
    /// How long a call may take beyond the `wait` that it asks for, all its attempts together.
    pub call_timeout: Duration,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        ConnectOptions { addresses: Vec::new(), call_timeout: Duration::from_secs(10) }
    }
}

/// How one call is made.
#[derive(Clone, Debug)]
pub struct CallOptions {
    /// How long all of it may take. `None`: the client's `call_timeout`, and what the request asks the service to wait.
    pub timeout: Option<Duration>,
    /// How often it may be sent at most. It is sent again only if it was not served, and if it is safe to be repeated.
    pub attempts: u32,
}

impl Default for CallOptions {
    fn default() -> Self {
        CallOptions { timeout: None, attempts: MOST_ATTEMPTS }
    }
}

/// A client of the service. Cheap to clone; all clones share the connections.
#[derive(Clone)]
pub struct Client(Arc<Shared>);

struct Shared {
    transport: Transport,
    call_timeout: Duration,
    runtime: Handle,
    left_behind: TaskTracker,
}

/// A client of the service. Connects with the first call and not before.
///
/// # Errors
/// INVALID_ARGUMENT without a reason if an address is none.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn connect(options: ConnectOptions) -> Result<Client, Error> {
    let mut addresses = options.addresses;
    if addresses.is_empty() {
        let told = env::var("HEADWAY_ADDRESS").ok().filter(|told| !told.is_empty());
        let told = told.unwrap_or_else(|| "127.0.0.1:7420".to_owned());
        addresses = told.split(',').map(|address| address.trim().to_owned()).collect();
    }
    let transport = Transport::new(addresses).map_err(|error| Error::own(Code::InvalidArgument, &error.to_string()))?;
    let (runtime, left_behind) = (Handle::current(), TaskTracker::new());
    Ok(Client(Arc::new(Shared { transport, call_timeout: options.call_timeout, runtime, left_behind })))
}

impl Client {
    /// A handle on the queue of this name; calls nothing, and the queue need not exist.
    #[must_use]
    pub fn queue(&self, name: impl Into<String>) -> Queue {
        Queue::new(self.clone(), name.into())
    }

    /// The stub of the calls of producers, workers and watchers. Its calls have no deadline and are not repeated; their
    /// `Status` becomes an [`Error`] by `From`.
    #[must_use]
    pub fn queues(&self) -> QueueServiceClient<Transport> {
        QueueServiceClient::new(self.0.transport.clone()).max_decoding_message_size(MAX_RECEIVE_BYTES)
    }

    /// The stub of the calls of operators; see [`Client::queues`].
    #[must_use]
    pub fn admin(&self) -> AdminServiceClient<Transport> {
        AdminServiceClient::new(self.0.transport.clone()).max_decoding_message_size(MAX_RECEIVE_BYTES)
    }

    /// Makes a unary call, which one its request says, with a deadline: the client's `call_timeout` and what the request
    /// asks the service to wait. It is made again if it was not served, up to five times within that time, where that is
    /// safe: calls that read, settle or carry ids. Dropping it cancels it.
    ///
    /// # Errors
    /// What the service says, DEADLINE_EXCEEDED, or UNAVAILABLE without a reason if it cannot be reached.
    pub async fn call<R: Call>(&self, request: R) -> Result<R::Response, Error> {
        self.call_with(request, CallOptions::default()).await
    }

    /// The same, with a deadline and a number of attempts of its own.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn call_with<R: Call>(&self, request: R, options: CallOptions) -> Result<R::Response, Error> {
        Ok(self.repeat(request, &options, |_| ()).await?.0)
    }

    /// Waits until workers have ended and dropped leases are given back: call it before the runtime ends.
    pub async fn settled(&self) {
        self.0.left_behind.close();
        self.0.left_behind.wait().await;
    }

    /// Makes a call, again while it is not served. Tells too whether an earlier attempt may have taken effect; once one
    /// may, `on_lost` may change the request.
    pub(crate) async fn repeat<R: Call>(
        &self,
        mut request: R,
        options: &CallOptions,
        mut on_lost: impl FnMut(&mut R),
    ) -> Result<(R::Response, bool), Error> {
        let wait = request.wait().and_then(|wait| from_wire(wait.as_ref())).unwrap_or_default();
        let wait_until = Instant::now() + wait;
        let deadline = Instant::now() + options.timeout.unwrap_or(self.0.call_timeout + wait);
        // An answer that never comes leaves time for another attempt; the service answers within 2 s after a wait.
        let is_shared = options.attempts > 1 && request.is_safe();
        let mut lost = None;
        for attempt in 1.. {
            let share = wait_until.max(Instant::now()) + self.0.call_timeout / 2;
            let until = if is_shared { share.min(deadline) } else { deadline };
            let error = match self.once(request.clone(), until).await {
                Ok(response) => return Ok((response, lost.is_some())),
                Err(error) => error,
            };
            let pause = backoff(attempt, error.retry_after);
            let is_lost = error.outcome_unknown && !error.never_sent;
            let is_over = attempt >= options.attempts || Instant::now() + pause >= deadline;
            if is_over || !error.is_unserved() || (is_lost && !request.is_safe()) {
                return Err(lost.filter(|_| error.is_unserved()).unwrap_or(error));
            }
            if is_lost {
                on_lost(&mut request);
                lost = Some(error);
            }
            sleep(pause).await;
            if let Some(Some(wait)) = request.wait() {
                *wait = to_wire(wait_until.saturating_duration_since(Instant::now()));
            }
        }
        unreachable!("the attempts are bounded")
    }

    /// One attempt. What a connection did not send any more, because it had broken before, is sent on another one.
    async fn once<R: Call>(&self, request: R, until: Instant) -> Result<R::Response, Error> {
        let send = async |message: R| -> Result<R::Response, Error> {
            let mut request = Request::new(message);
            request.set_timeout(until.saturating_duration_since(Instant::now()));
            Ok(R::send(self, request).await?.into_inner())
        };
        let sent = async {
            match send(request.clone()).await {
                Err(error) if error.never_sent => send(request).await,
                answer => answer,
            }
        };
        timeout_at(until, sent).await.unwrap_or_else(|_| Err(late()))
    }

    pub(crate) fn call_timeout(&self) -> Duration {
        self.0.call_timeout
    }

    /// As long as it lives, [`Client::settled`] waits.
    pub(crate) fn token(&self) -> TaskTrackerToken {
        self.0.left_behind.token()
    }

    pub(crate) fn leave_behind(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.left_behind.spawn_on(work, &self.0.runtime);
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_tuple("Client").field(&self.0.transport).finish()
    }
}

pub(crate) fn late() -> Error {
    Error::own(Code::DeadlineExceeded, "no answer came in time")
}

/// The wait after the n-th failure in a row: doubling from 0.1 s to 5 s, with jitter, never before `retry_after`.
pub(crate) fn backoff(failures: u32, retry_after: Option<Duration>) -> Duration {
    let span = Duration::from_millis(100 << (failures - 1).min(16)).min(LONGEST_BACKOFF);
    let jitter = 0.5 + (random() >> 11) as f64 / (1u64 << 54) as f64;
    span.mul_f64(jitter).max(retry_after.unwrap_or_default())
}

/// 64 bits that nobody else has: the standard library's hash keys come from the system's source of randomness.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
