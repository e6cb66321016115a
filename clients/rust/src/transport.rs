//! Answers for the connections: one for each address of the service, used in turn; those that fail are passed over.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::net::lookup_host;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::{Channel, Endpoint, Error};

const KEEPALIVE: Duration = Duration::from_secs(20); // the service allows pings every 10 s and more
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const PASSED_OVER: Duration = Duration::from_secs(1); // so long an address that failed is used only if all others did

/// What the generated stubs of a [`Client`](crate::Client) send on: round robin over all addresses of the service.
#[derive(Clone, Debug)]
pub struct Transport(Arc<Ring>);

#[derive(Debug)]
struct Ring {
    names: Vec<String>,
    peers: RwLock<Vec<Arc<Peer>>>, // at least one for each name
    next: AtomicUsize,
    is_resolving: AtomicBool,
}

#[derive(Debug)]
struct Peer {
    name: String,
    address: Option<SocketAddr>, // None: by its name
    endpoint: Endpoint,
    channel: tokio::sync::Mutex<Option<Channel>>, // None: not connected
    usable_from: Mutex<Instant>,
}

impl Transport {
    /// Connects with the first call and not before. Fails if something is no "host:port".
    pub(crate) fn new(names: Vec<String>) -> Result<Self, Error> {
        let peers = names.iter().map(|name| Peer::new(name, None)).collect::<Result<Vec<_>, _>>()?;
        let (peers, next, is_resolving) = (RwLock::new(peers), AtomicUsize::new(0), AtomicBool::new(false));
        let transport = Transport(Arc::new(Ring { names, peers, next, is_resolving }));
        transport.resolve();
        Ok(transport)
    }

    /// Looks up all names anew, in the background: a name with many addresses is as many peers.
    fn resolve(&self) {
        let is_fixed = self.0.names.iter().all(|name| name.parse::<SocketAddr>().is_ok());
        if is_fixed || self.0.is_resolving.swap(true, Ordering::AcqRel) {
            return;
        }
        let ring = self.0.clone();
        tokio::spawn(async move {
            for name in &ring.names {
                let Ok(found) = lookup_host(name).await else { continue }; // what is known of it stays
                let mut found: Vec<_> = found.collect();
                found.sort_unstable();
                found.dedup();
                let mut peers = ring.peers.write().expect("nobody panics with it");
                let (old, mut fresh): (Vec<_>, Vec<_>) = peers.drain(..).partition(|peer| peer.name == *name);
                let known = |address| old.iter().find(|peer| peer.address == Some(address)).cloned();
                let made = found.into_iter().filter_map(|at| known(at).or_else(|| Peer::new(name, Some(at)).ok()));
                let made: Vec<_> = made.collect();
                fresh.extend(if made.is_empty() { old } else { made });
                *peers = fresh;
            }
            ring.is_resolving.store(false, Ordering::Release);
        });
    }

    /// All peers, the one whose turn it is first, and those that failed lately last.
    fn in_turn(&self) -> Vec<Arc<Peer>> {
        let mut peers = self.0.peers.read().expect("nobody panics with it").clone();
        let turn = self.0.next.fetch_add(1, Ordering::Relaxed) % peers.len();
        peers.rotate_left(turn);
        let now = Instant::now();
        peers.sort_by_key(|peer| *peer.usable_from.lock().expect("nobody panics with it") > now); // stable
        peers
    }

    async fn send(self, request: http::Request<Body>) -> Result<http::Response<Body>, Error> {
        let mut failure = None;
        for peer in self.in_turn() {
            match peer.channel().await {
                Ok(mut channel) => {
                    poll_fn(|context| channel.poll_ready(context)).await?;
                    let answer = channel.call(request).await;
                    if answer.is_err() {
                        *peer.channel.lock().await = None;
                        self.resolve();
                    }
                    return answer;
                }
                Err(error) => failure = Some(error),
            }
            *peer.usable_from.lock().expect("nobody panics with it") = Instant::now() + PASSED_OVER;
            self.resolve();
        }
        Err(failure.expect("there is a peer for each name"))
    }
}

impl Peer {
    fn new(name: &str, address: Option<SocketAddr>) -> Result<Arc<Self>, Error> {
        let target = address.map_or_else(|| name.to_owned(), |address| address.to_string());
        let named = Endpoint::from_shared(format!("http://{name}"))?;
        let endpoint = Endpoint::from_shared(format!("http://{target}"))?
            .origin(named.uri().clone())
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(false);
        let (channel, usable_from) = (tokio::sync::Mutex::new(None), Mutex::new(Instant::now()));
        Ok(Arc::new(Peer { name: name.to_owned(), address, endpoint, channel, usable_from }))
    }

    /// The connection, made if there is none. It is made anew by itself when it breaks later.
    async fn channel(&self) -> Result<Channel, Error> {
        let mut channel = self.channel.lock().await;
        if channel.is_none() {
            *channel = Some(self.endpoint.connect().await?);
        }
        Ok(channel.clone().expect("it was made above"))
    }
}

impl Service<http::Request<Body>> for Transport {
    type Response = http::Response<Body>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}
