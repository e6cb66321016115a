//! Answers for the connections: one for each address of the service, used in turn; those that fail are passed over.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use std::{future::poll_fn, net::SocketAddr, pin::Pin, sync::Arc};

use tokio::{net::lookup_host, sync::Mutex};
use tonic::body::Body;
use tonic::codegen::{Service, StdError, http};
use tonic::transport::{Channel, Endpoint};

const KEEPALIVE: Duration = Duration::from_secs(20); // the service allows pings every 10 s and more
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const PASSED_OVER: Duration = Duration::from_secs(1); // so long an address that failed comes behind all others

/// What the generated stubs of a [`Client`](crate::Client) send on: round robin over all addresses of the service.
#[derive(Clone, Debug)]
pub struct Transport {
    names: Arc<[String]>,
    peers: Arc<Mutex<Vec<Arc<Peer>>>>, // by address, the one whose turn it is first; none: to be looked up
}

#[derive(Debug)]
struct Peer {
    address: SocketAddr,
    endpoint: Endpoint,
    channel: Mutex<Option<Channel>>, // None: not connected
    comes_last_until: std::sync::Mutex<Option<Instant>>,
}

impl Transport {
    /// Connects with the first call and not before. Fails if something is no "host:port".
    pub(crate) fn new(names: Vec<String>) -> Result<Self, StdError> {
        for name in &names {
            let is_whole = endpoint(name, name)?.uri().port().is_some();
            is_whole.then_some(()).ok_or_else(|| format!("{name:?} is no host:port"))?;
        }
        Ok(Transport { names: names.into(), peers: Arc::default() })
    }

    async fn send(self, request: http::Request<Body>) -> Result<http::Response<Body>, StdError> {
        let mut failure = "no address".into();
        for peer in self.in_turn().await? {
            let mut kept = peer.channel.lock().await;
            let connected = match kept.clone() {
                Some(channel) => Ok(channel),
                None => peer.endpoint.connect().await,
            };
            *kept = connected.as_ref().ok().cloned();
            drop(kept);
            let answer = match connected {
                Ok(mut channel) => {
                    poll_fn(|context| channel.poll_ready(context)).await?;
                    channel.call(request).await
                }
                Err(error) => {
                    *peer.comes_last_until.lock().unwrap() = Some(Instant::now() + PASSED_OVER);
                    failure = self.look_up(&mut *self.peers.lock().await).await.err().unwrap_or(error.into());
                    continue;
                }
            };
            if answer.is_err() {
                *peer.channel.lock().await = None;
            }
            return Ok(answer?);
        }
        Err(failure)
    }

    /// All peers, the one whose turn it is first, and those that failed lately last.
    async fn in_turn(&self) -> Result<Vec<Arc<Peer>>, StdError> {
        let mut peers = self.peers.lock().await;
        if peers.is_empty() {
            self.look_up(&mut peers).await?;
        }
        peers.rotate_left(1);
        let mut turn = peers.clone();
        turn.sort_by_key(|peer| *peer.comes_last_until.lock().unwrap() > Some(Instant::now())); // keeps the order else
        Ok(turn)
    }

    /// Finds out which addresses the names have now; what is connected stays so.
    async fn look_up(&self, peers: &mut Vec<Arc<Peer>>) -> Result<(), StdError> {
        let mut found: Vec<Arc<Peer>> = Vec::new();
        for name in self.names.iter() {
            for address in lookup_host(name).await? {
                let known = peers.iter().find(|peer| peer.address == address).cloned();
                found.retain(|peer| peer.address != address);
                found.push(known.map_or_else(|| Peer::new(name, address), Ok)?);
            }
        }
        *peers = found;
        Ok(())
    }
}

impl Peer {
    fn new(name: &str, address: SocketAddr) -> Result<Arc<Self>, StdError> {
        let endpoint = endpoint(name, &address.to_string())?;
        let (channel, comes_last_until) = Default::default();
        Ok(Arc::new(Peer { address, endpoint, channel, comes_last_until }))
    }
}

/// Where to connect to; `name` is what the service is told that it is called by.
fn endpoint(name: &str, target: &str) -> Result<Endpoint, StdError> {
    let endpoint = Endpoint::from_shared(format!("http://{target}"))?.origin(format!("http://{name}").parse()?);
    let endpoint = endpoint.http2_keep_alive_interval(KEEPALIVE).keep_alive_timeout(KEEPALIVE_TIMEOUT);
    Ok(endpoint.connect_timeout(CONNECT_TIMEOUT))
}

impl Service<http::Request<Body>> for Transport {
    type Response = http::Response<Body>;
    type Error = StdError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, StdError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), StdError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}
