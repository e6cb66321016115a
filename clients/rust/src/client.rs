//! The client: one for the service, with its stubs and the calls on them.

use std::{env, sync::Arc, time::Duration};

use tonic::{Code, Request, Response, Status, service::Interceptor, transport::Channel, transport::Endpoint};
use {tokio::runtime::Handle, tokio::time::Instant, tokio::time::sleep, tokio::time::timeout_at};
use {tokio_util::task::TaskTracker, tonic::service::interceptor::InterceptedService};

use crate::v1::{admin_service_client::AdminServiceClient, queue_service_client::QueueServiceClient};
use crate::{error::Error, queue::Queue, v1::Call, v1::ErrorReason};

const MAX_RECEIVE_BYTES: usize = 64 * 1024 * 1024;
const SLOWEST: Duration = Duration::from_secs(2); // the service answers within so long after the wait
pub(crate) const PATIENCE: Duration = Duration::from_secs(10); // to connect, with a ping, and with a call beyond its wait
pub(crate) const LONGEST_SPAN: Duration = Duration::from_secs(1_000_000_000); // longer than anything the service accepts

// Done twice, these do harm (Put and Get unless they carry ids), or fail by rule, or their second answer tells only its
// own part, and not what the first one did.
const UNSAFE: [&str; 7] = ["Put", "Get", "Close", "Delete", "Purge", "Repair", "Withdraw"];

// Codes that end what was served when a token expires, or a grant changes; the token of now may have it go on.
pub(crate) const OF_CALLERS: [Code; 2] = [Code::Unauthenticated, Code::PermissionDenied];

type Done<R> = Result<<R as Call>::Response, Error>;
type Secured = Result<Endpoint, tonic::transport::Error>;
type Service = InterceptedService<Channel, Token>;

/// What gives each call its token; see [`Client::with_token`].
#[derive(Clone)]
pub struct Token(Arc<dyn Fn() -> Option<String> + Send + Sync>);

impl Interceptor for Token {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let Some(token) = self.0() else { return Ok(request) };
        let bearer = format!("Bearer {}", token.trim()).parse();
        let bearer = bearer.map_err(|_| Status::unauthenticated("the token is no text of ASCII"))?;
        request.metadata_mut().insert("authorization", bearer);
        Ok(request)
    }
}

/// A client of the service. Cheap to clone; all clones share the connections, and each has settings of its own.
#[derive(Clone, Debug)]
pub struct Client {
    /// How long a call may take, all its attempts together. `None`: 10 s and what it asks the service to wait.
    pub call_timeout: Option<Duration>,
    /// How often a call is made while the service is UNAVAILABLE or silent, where that is safe: 8, which takes most of its time.
    pub attempts: u32,
    channel: Channel,
    service: Service,
    pub(crate) runtime: Handle,
    pub(crate) left_behind: TaskTracker, // as long as its tasks live, `settled` waits
}

/// A client of the service at these addresses, "host:port" each and commas between them, in plain text; calls go to all
/// of them. `None`: those in the environment's HEADWAY_ADDRESS, else 127.0.0.1:7420. Connects with the first call and
/// not before.
///
/// # Errors
/// INVALID_ARGUMENT without a reason if an address is none.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn connect(addresses: Option<&str>) -> Result<Client, Error> {
    connect_by("http", addresses, Ok)
}

/// The same by TLS. Each address is an endpoint that `secured` gives its `ClientTlsConfig`, by `Endpoint::tls_config` of
/// the feature `tls`: whom to trust, and what certificate to show. Without any it is not connected to.
///
/// # Errors
/// INVALID_ARGUMENT without a reason if an address is none, or what `secured` was given cannot be read.
///
/// # Panics
/// Outside of a tokio runtime.
pub fn connect_tls(addresses: Option<&str>, secured: impl Fn(Endpoint) -> Secured) -> Result<Client, Error> {
    connect_by("https", addresses, secured)
}

fn connect_by(scheme: &str, addresses: Option<&str>, secured: impl Fn(Endpoint) -> Secured) -> Result<Client, Error> {
    let told = env::var("HEADWAY_ADDRESS").ok().filter(|told| !told.is_empty());
    let told = addresses.or(told.as_deref()).unwrap_or("127.0.0.1:7420");
    let endpoint = |address: &str| {
        let endpoint = Endpoint::from_shared(format!("{scheme}://{}", address.trim())).ok();
        let endpoint = endpoint.filter(|each| each.uri().port().is_some()).and_then(|each| secured(each).ok());
        let endpoint = endpoint.ok_or_else(|| Status::invalid_argument(format!("{address:?} is no host:port")))?;
        // The service allows pings every 10 s and more.
        Ok(endpoint.http2_keep_alive_interval(2 * PATIENCE).keep_alive_timeout(PATIENCE).connect_timeout(PATIENCE))
    };
    let endpoints = told.trim_end_matches([',', ' ']).split(',').map(endpoint).collect::<Result<Vec<_>, Status>>()?;
    let (channel, runtime) = (Channel::balance_list(endpoints.into_iter()), Handle::current());
    let service = InterceptedService::new(channel.clone(), Token(Arc::new(|| None)));
    Ok(Client { call_timeout: None, attempts: 8, channel, service, runtime, left_behind: TaskTracker::new() })
}

impl Client {
    /// The client with a bearer token for each call and stream. `give` is asked anew for each, so it must be quick;
    /// where it gives `None` no token is sent. Clones that were made before stay without.
    pub fn with_token(self, give: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        Client { service: InterceptedService::new(self.channel.clone(), Token(Arc::new(give))), ..self }
    }

    /// A handle on the queue of this name; calls nothing, and the queue need not exist.
    pub fn queue(&self, name: impl Into<String>) -> Queue {
        Queue { client: self.clone(), name: name.into() }
    }

    /// The stub of the calls of producers, workers and watchers. Its calls have no deadline and are not repeated; their
    /// `Status` becomes an [`Error`] by `From`.
    pub fn queues(&self) -> QueueServiceClient<Service> {
        QueueServiceClient::new(self.service.clone()).max_decoding_message_size(MAX_RECEIVE_BYTES)
    }

    /// The stub of the calls of operators; see [`Client::queues`].
    pub fn admin(&self) -> AdminServiceClient<Service> {
        AdminServiceClient::new(self.service.clone()).max_decoding_message_size(MAX_RECEIVE_BYTES)
    }

    /// Makes a unary call, which one its request says, with a deadline. While the service is UNAVAILABLE it is made
    /// again until then, but not more than `attempts` times, where that is safe: calls that read, that settle, or that
    /// make the same of a queue, and what was never sent. So it is where no answer comes in half of the time that is
    /// left beyond the wait, but not before 2 s, and not after 5 s. Dropping it cancels it.
    ///
    /// # Errors
    /// What the service says, DEADLINE_EXCEEDED, or UNAVAILABLE without a reason if it cannot be reached. If an attempt
    /// may have taken effect and the last one does not tell, the error is that attempt's, with `outcome_unknown`.
    pub async fn call<R: Call>(&self, request: R) -> Result<R::Response, Error> {
        self.repeat(request, (!UNSAFE.contains(&R::NAME)).then_some(|_: &mut R| ())).await // again as it is
    }

    /// Waits until handlers have ended and dropped leases are given back: call it before the runtime ends.
    pub async fn settled(&self) {
        self.left_behind.close();
        self.left_behind.wait().await;
    }

    /// Makes a call, and, if that is safe, again while it is not served: after what `again` does to the request, where
    /// an attempt may have taken effect. A Get that waits, and is refused for who calls, is made once more, with the
    /// token of now.
    pub(crate) async fn repeat<R: Call, F: FnMut(&mut R)>(&self, mut asked: R, mut again: Option<F>) -> Done<R> {
        let wait = asked.wait().and_then(|wait| Duration::try_from(*wait).ok()).unwrap_or_default();
        let most = self.call_timeout.unwrap_or(wait + PATIENCE).min(LONGEST_SPAN);
        let (waited_at, end) = (Instant::now() + wait.min(most), Instant::now() + most);
        let (mut lost, mut failures) = (None, 0);
        loop {
            failures += 1;
            let (is_last, from) = (again.is_none() || failures >= self.attempts, Instant::now().max(waited_at));
            // An answer that does not come leaves time for another try.
            let until = if is_last { end } else { end.min(from + SLOWEST.max(PATIENCE.min(end - from) / 2)) };
            let mut request = Request::new(asked.clone());
            request.set_timeout(until - Instant::now());
            let late = |_| Err(Status::deadline_exceeded("no answer came in time"));
            let answer = timeout_at(until, R::send(self, request)).await.unwrap_or_else(late);
            let answer = answer.map(Response::into_inner).map_err(Error::from);
            let Err(error) = answer else { return answer };
            let pause = backoff(failures, &error);
            let is_over = failures >= self.attempts || Instant::now() + pause >= end;
            // gRPC ends with CANCELLED what a process that goes down, or is overrun, has not begun.
            let is_away = matches!(error.code, Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded);
            let is_expired = failures == 1 && R::NAME == "Get" && !wait.is_zero() && OF_CALLERS.contains(&error.code);
            if is_over || !(is_away || is_expired) || !(again.is_some() || error.never_sent) {
                // QUEUE_PAUSED passes, but says of a Get that one before it has no lease.
                return Err(lost.filter(|_| error.is_blind() && !error.is(ErrorReason::QueuePaused)).unwrap_or(error));
            }
            again.iter_mut().filter(|_| error.outcome_unknown).for_each(|again| again(&mut asked));
            lost = lost.or(error.outcome_unknown.then_some(error)); // the first that may have taken effect
            sleep(pause).await;
            asked.wait().into_iter().for_each(|left| *left = span(waited_at - Instant::now())); // at least 0
        }
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
    span.mul_f64(rand::random_range(0.5..=1.0)).max(error.retry_after.unwrap_or_default())
}
