//! The client: one for the service, with its stubs and the calls on them.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::{env, sync::Arc, time::Duration};

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::TaskTracker;
use tonic::{Code, Request, client::Grpc, codegen::http::uri::PathAndQuery};
use tonic_prost::ProstCodec;

use crate::v1::{admin_service_client::AdminServiceClient, queue_service_client::QueueServiceClient};
use crate::{error::Error, queue::Queue, transport::Transport};

const MAX_RECEIVE_BYTES: usize = 64 * 1024 * 1024;
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);
const LONGEST_SPAN: Duration = Duration::from_secs(1_000_000_000); // longer than anything the service accepts
pub(crate) const ATTEMPTS: u32 = 5;

// Done twice, these do harm (Put and Get unless they carry ids), or fail by rule, or their second answer tells only its
// own part.
const UNSAFE: [&str; 6] = ["/Put", "/Get", "/Close", "/Delete", "/Purge", "/Repair"];

/// Where the service is, and how long a call may take.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// "host:port" each, used in turn, as are all addresses of a name. Empty: the environment's HEADWAY_ADDRESS, where
    /// commas separate several, else 127.0.0.1:7420.
    pub addresses: Vec<String>,
    /// How long a call may take beyond the `wait` that it asks for, all its attempts together. `None`: 10 s.
    pub call_timeout: Option<Duration>,
}

/// The request of a unary call, for [`Client::call`].
pub trait Call: prost::Message + Clone + 'static {
    /// What answers it.
    type Response: prost::Message + Default + 'static;
    /// The call's name on the wire.
    const PATH: &'static str;

    /// How long it asks the service to wait, if it can ask for that.
    fn wait(&mut self) -> Option<&mut Option<prost_types::Duration>> {
        None
    }
}

/// A client of the service. Cheap to clone; all clones share the connections.
#[derive(Clone, Debug)]
pub struct Client {
    transport: Transport,
    pub(crate) call_timeout: Duration,
    pub(crate) runtime: Handle,
    pub(crate) left_behind: TaskTracker, // as long as its tokens or tasks live, `settled` waits
}

/// A client of the service. Connects with the first call and not before.
///
/// # Errors
/// INVALID_ARGUMENT without a reason if an address is none.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn connect(options: ConnectOptions) -> Result<Client, Error> {
    let told = env::var("HEADWAY_ADDRESS").ok().filter(|told| !told.is_empty());
    let told = told.unwrap_or_else(|| "127.0.0.1:7420".to_owned());
    let told = told.split(',').map(|address| address.trim().to_owned());
    let names = if options.addresses.is_empty() { told.collect() } else { options.addresses };
    let transport = Transport::new(names).map_err(|error| Error::own(Code::InvalidArgument, &error.to_string()))?;
    let call_timeout = options.call_timeout.unwrap_or(CALL_TIMEOUT).min(LONGEST_SPAN);
    Ok(Client { transport, call_timeout, runtime: Handle::current(), left_behind: TaskTracker::new() })
}

impl Client {
    /// A handle on the queue of this name; calls nothing, and the queue need not exist.
    pub fn queue(&self, name: impl Into<String>) -> Queue {
        Queue { client: self.clone(), name: name.into(), policy_lease: Arc::default() }
    }

    /// The stub of the calls of producers, workers and watchers. Its calls have no deadline and are not repeated; their
    /// `Status` becomes an [`Error`] by `From`.
    pub fn queues(&self) -> QueueServiceClient<Transport> {
        QueueServiceClient::new(self.transport.clone()).max_decoding_message_size(MAX_RECEIVE_BYTES)
    }

    /// The stub of the calls of operators; see [`Client::queues`].
    pub fn admin(&self) -> AdminServiceClient<Transport> {
        AdminServiceClient::new(self.transport.clone()).max_decoding_message_size(MAX_RECEIVE_BYTES)
    }

    /// Makes a unary call, which one its request says, with a deadline: the client's `call_timeout` and what the request
    /// asks the service to wait. It is made again if it was not served, up to five times within that time, where that is
    /// safe: calls that read, that settle, or that make the same of a queue. Dropping it cancels it.
    ///
    /// # Errors
    /// What the service says, DEADLINE_EXCEEDED, or UNAVAILABLE without a reason if it cannot be reached.
    pub async fn call<R: Call>(&self, request: R) -> Result<R::Response, Error> {
        self.call_with(request, None, ATTEMPTS).await
    }

    /// The same, with a time for all of it and a number of attempts of its own.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn call_with<R: Call>(
        &self,
        request: R,
        timeout: Option<Duration>,
        attempts: u32,
    ) -> Result<R::Response, Error> {
        let is_safe = !UNSAFE.iter().any(|name| R::PATH.ends_with(name));
        let attempts = if is_safe { attempts } else { 1 };
        Ok(self.repeat(request, timeout, attempts, is_safe, |_| ()).await?.0)
    }

    /// Waits until workers have ended and dropped leases are given back: call it before the runtime ends.
    pub async fn settled(&self) {
        self.left_behind.close();
        self.left_behind.wait().await;
    }

    /// Makes a call, again while it is not served. Tells too whether an earlier attempt may have taken effect; once one
    /// may, `on_lost` may change the request.
    pub(crate) async fn repeat<R: Call>(
        &self,
        mut request: R,
        timeout: Option<Duration>,
        attempts: u32,
        is_safe: bool,
        on_lost: impl Fn(&mut R),
    ) -> Result<(R::Response, bool), Error> {
        let wait = request.wait().and_then(|wait| Duration::try_from((*wait)?).ok()).unwrap_or_default();
        let wait_until = Instant::now() + wait.min(LONGEST_SPAN);
        let deadline = timeout.map_or(wait_until + self.call_timeout, |span| Instant::now() + span.min(LONGEST_SPAN));
        let mut lost = None;
        for attempt in 1.. {
            // An answer that never comes leaves time for another attempt; the service answers within 2 s after a wait.
            let share = wait_until.max(Instant::now()) + self.call_timeout / 2;
            let until = if attempts > 1 && is_safe { share.min(deadline) } else { deadline };
            let error = match timeout_at(until, self.send(&request, until)).await {
                Ok(Ok(response)) => return Ok((response, lost.is_some())),
                Ok(Err(error)) => error,
                Err(_) => late(),
            };
            let pause = backoff(attempt, error.retry_after);
            let is_over = attempt >= attempts || Instant::now() + pause >= deadline || !error.is_unserved();
            if is_over || (error.outcome_unknown && !is_safe) {
                return Err(lost.filter(|_| error.is_unserved()).unwrap_or(error));
            }
            if error.outcome_unknown {
                on_lost(&mut request);
                lost = Some(error);
            }
            sleep(pause).await;
            if let Some(Some(wait)) = request.wait() {
                *wait = span(wait_until - Instant::now());
            }
        }
        unreachable!("the attempts are bounded")
    }

    /// One attempt. What a connection did not send any more, because it had broken before, is sent on another one.
    async fn send<R: Call>(&self, message: &R, until: Instant) -> Result<R::Response, Error> {
        let mut grpc = Grpc::new(self.transport.clone()).max_decoding_message_size(MAX_RECEIVE_BYTES);
        let mut send = async || -> Result<R::Response, Error> {
            let mut request = Request::new(message.clone());
            request.set_timeout(until - Instant::now());
            Ok(grpc.unary(request, PathAndQuery::from_static(R::PATH), ProstCodec::default()).await?.into_inner())
        };
        match send().await {
            Err(error) if error.never_sent => send().await,
            answer => answer,
        }
    }
}

/// The span as the messages have it, rounded up to whole milliseconds.
pub fn span(span: Duration) -> prost_types::Duration {
    let whole = Duration::from_millis(span.min(LONGEST_SPAN).as_nanos().div_ceil(1_000_000) as u64);
    prost_types::Duration { seconds: whole.as_secs() as i64, nanos: whole.subsec_nanos() as i32 }
}

pub(crate) fn late() -> Error {
    Error::own(Code::DeadlineExceeded, "no answer came in time")
}

/// The wait after the n-th failure in a row: doubling from 0.1 s to 5 s, with jitter, never before `retry_after`.
pub(crate) fn backoff(failures: u32, retry_after: Option<Duration>) -> Duration {
    let span = Duration::from_millis(100 << (failures - 1).min(16)).min(LONGEST_BACKOFF);
    let jitter = 0.5 + random() as f64 / u64::MAX as f64 / 2.0;
    span.mul_f64(jitter).max(retry_after.unwrap_or_default())
}

/// A name for one Get that no other Get has.
pub(crate) fn new_attempt_id() -> String {
    format!("{:016x}{:016x}", random(), random())
}

/// The standard library's hash keys come from the system's source of randomness.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
