//! The client: one for the service, with its stubs and the calls on them.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::{env, time::Duration};

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::TaskTracker;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

use crate::v1::{admin_service_client::AdminServiceClient, queue_service_client::QueueServiceClient};
use crate::{error::Error, queue::Queue};

const MAX_RECEIVE_BYTES: usize = 64 * 1024 * 1024;
const KEEPALIVE: Duration = Duration::from_secs(20); // the service allows pings every 10 s and more
const SILENCE: Duration = Duration::from_secs(10); // so long to connect, or to answer a ping
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
const LONGEST_SPAN: Duration = Duration::from_secs(1_000_000_000); // longer than anything the service accepts

// Done twice, these do harm (Put and Get unless they carry ids), or fail by rule, or their second answer tells only its
// own part.
const UNSAFE: [&str; 6] = ["Put", "Get", "Close", "Delete", "Purge", "Repair"];

/// The request of a unary call, for [`Client::call`].
pub trait Call: prost::Message + Clone + 'static {
    /// What answers it.
    type Response: prost::Message + Default + 'static;
    /// The call's name.
    const NAME: &'static str;

    /// Makes the call, once, by the client's stub.
    fn send(
        client: &Client,
        request: Request<Self>,
    ) -> impl Future<Output = Result<Response<Self::Response>, Status>> + Send;

    /// How long it asks the service to wait.
    fn wait(&self) -> Option<prost_types::Duration> {
        None
    }
}

/// A client of the service. Cheap to clone; all clones share the connections, and each has settings of its own.
#[derive(Clone, Debug)]
pub struct Client {
    /// How long a call may take, all its attempts together. `None`: 10 s and what it asks the service to wait.
    pub call_timeout: Option<Duration>,
    /// How often a call is made while the service is UNAVAILABLE, where that is safe: 5.
    pub attempts: u32,
    channel: Channel,
    pub(crate) runtime: Handle,
    pub(crate) left_behind: TaskTracker, // as long as its tasks live, `settled` waits
}

/// A client of the service at these addresses, "host:port" each and commas between them; calls go to all of them.
/// `None`: those in the environment's HEADWAY_ADDRESS, else 127.0.0.1:7420. Connects with the first call and not
/// before.
///
/// # Errors
/// INVALID_ARGUMENT without a reason if an address is none.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn connect(addresses: Option<&str>) -> Result<Client, Error> {
    let told = env::var("HEADWAY_ADDRESS").ok().filter(|told| !told.is_empty());
    let told = addresses.or(told.as_deref()).unwrap_or("127.0.0.1:7420");
    let endpoints = told.split(',').map(|address| endpoint(address.trim())).collect::<Result<Vec<_>, _>>()?;
    let (channel, runtime) = (Channel::balance_list(endpoints.into_iter()), Handle::current());
    Ok(Client { call_timeout: None, attempts: 5, channel, runtime, left_behind: TaskTracker::new() })
}

fn endpoint(address: &str) -> Result<Endpoint, Status> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).ok().filter(|each| each.uri().port().is_some());
    let endpoint = endpoint.ok_or_else(|| Status::invalid_argument(format!("{address:?} is no host:port")))?;
    let endpoint = endpoint.http2_keep_alive_interval(KEEPALIVE).keep_alive_timeout(SILENCE);
    Ok(endpoint.connect_timeout(SILENCE))
}

impl Client {
    /// A handle on the queue of this name; calls nothing, and the queue need not exist.
    pub fn queue(&self, name: impl Into<String>) -> Queue {
        Queue { client: self.clone(), name: name.into() }
    }

    /// The stub of the calls of producers, workers and watchers. Its calls have no deadline and are not repeated; their
    /// `Status` becomes an [`Error`] by `From`.
    pub fn queues(&self) -> QueueServiceClient<Channel> {
        QueueServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_RECEIVE_BYTES)
    }

    /// The stub of the calls of operators; see [`Client::queues`].
    pub fn admin(&self) -> AdminServiceClient<Channel> {
        AdminServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_RECEIVE_BYTES)
    }

    /// Makes a unary call, which one its request says, with a deadline. While the service is UNAVAILABLE it is made
    /// again until then, but not more than `attempts` times, where that is safe: calls that read, that settle, or that
    /// make the same of a queue, and what was never sent. Dropping it cancels it.
    ///
    /// # Errors
    /// What the service says, DEADLINE_EXCEEDED, or UNAVAILABLE without a reason if it cannot be reached.
    pub async fn call<R: Call>(&self, request: R) -> Result<R::Response, Error> {
        let again: fn(&mut R) = |_| (); // as it is
        self.repeat(request, (!UNSAFE.contains(&R::NAME)).then_some(again)).await
    }

    /// Waits until handlers have ended and dropped leases are given back: call it before the runtime ends.
    pub async fn settled(&self) {
        self.left_behind.close();
        self.left_behind.wait().await;
    }

    /// Makes a call, and, if that is safe, again while it is not served: after what `again` does to the request, where
    /// an attempt may have taken effect.
    pub(crate) async fn repeat<R: Call>(
        &self,
        mut request: R,
        again: Option<fn(&mut R)>,
    ) -> Result<R::Response, Error> {
        let wait = request.wait().and_then(|wait| Duration::try_from(wait).ok()).unwrap_or_default();
        let deadline = Instant::now() + self.call_timeout.unwrap_or(wait + CALL_TIMEOUT).min(LONGEST_SPAN);
        let mut failures = 0;
        loop {
            let answer = self.send(&request, deadline).await.map_err(Error::from);
            let Err(error) = &answer else { return answer };
            failures += 1;
            let pause = backoff(failures, error);
            let is_over = failures >= self.attempts || Instant::now() + pause >= deadline;
            if is_over || error.code != Code::Unavailable || !(again.is_some() || error.never_sent) {
                return answer;
            }
            if let Some(again) = again.filter(|_| error.outcome_unknown) {
                again(&mut request);
            }
            sleep(pause).await;
        }
    }

    async fn send<R: Call>(&self, message: &R, deadline: Instant) -> Result<R::Response, Status> {
        let mut request = Request::new(message.clone());
        request.set_timeout(deadline - Instant::now());
        let late = |_| Status::deadline_exceeded("no answer came in time");
        Ok(timeout_at(deadline, R::send(self, request)).await.map_err(late)??.into_inner())
    }
}

/// The span as the messages have it, rounded up to whole milliseconds.
pub fn span(span: Duration) -> prost_types::Duration {
    let whole = Duration::from_millis(span.min(LONGEST_SPAN).as_nanos().div_ceil(1_000_000) as u64);
    prost_types::Duration { seconds: whole.as_secs() as i64, nanos: whole.subsec_nanos() as i32 }
}

/// The wait after the n-th failure in a row: doubling from 0.1 s to 5 s, with jitter, never before `retry_after`.
pub(crate) fn backoff(failures: u32, error: &Error) -> Duration {
    let span = Duration::from_millis(100 << (failures - 1).min(16)).min(Duration::from_secs(5));
    let jitter = 0.5 + random() as f64 / u64::MAX as f64 / 2.0;
    span.mul_f64(jitter).max(error.retry_after.unwrap_or_default())
}

/// The standard library's hash keys come from the system's source of randomness.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
