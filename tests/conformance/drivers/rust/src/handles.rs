//! What stays open between requests: streams, leases, workers and watches.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use headway::v1::{ConsumeRequest, ProduceRequest, RedriveRequest, WatchPositionRequest, WatchQueueRequest};
use headway::{Client, Error, Lease, LeaseOptions, Queue, Watch, WorkOptions};
use prost::Message;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status};

use crate::wire::{Answer, Fault, Schema, bytes, millis, tell, text};

pub enum Handle {
    Stream(Streamed),
    Lease(Held),
    Work(Working),
    Watch(Watched),
}

/// A task that ends with its handle.
struct Task(Mutex<Option<JoinHandle<()>>>);

impl Task {
    fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Task(Mutex::new(Some(tokio::spawn(work))))
    }

    async fn end(&self) {
        let task = self.0.lock().unwrap().take();
        if let Some(task) = task {
            task.abort();
            let _ = task.await;
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(task) = self.0.get_mut().unwrap() {
            task.abort();
        }
    }
}

macro_rules! part {
    ($name:ident, $kind:ident, $part:ty) => {
        pub fn $name(&self) -> Result<&$part, Fault> {
            match self {
                Handle::$kind(part) => Ok(part),
                _ => Err(Fault::own("a handle of another kind")),
            }
        }
    };
}

impl Handle {
    part!(stream, Stream, Streamed);
    part!(lease, Lease, Held);
    part!(work, Work, Working);
    part!(watch, Watch, Watched);

    /// Ends it from outside.
    pub async fn end(&self) {
        match self {
            Handle::Stream(stream) => stream.task.end().await,
            Handle::Lease(held) => held.task.end().await,
            Handle::Work(working) => working.task.end().await,
            Handle::Watch(watched) => drop(watched.watch.lock().await.take()),
        }
    }
}

/// A call that streams, as the generated stub has it; its errors are the layer's.
pub struct Streamed {
    schema: Schema,
    request: &'static str,
    requests: Mutex<Option<mpsc::Sender<Vec<u8>>>>,
    answers: tokio::sync::Mutex<mpsc::Receiver<Result<Option<Value>, Error>>>,
    task: Task,
}

/// Makes the call, then passes on its answers until its end.
macro_rules! answers {
    ($stub:expr, $call:ident, $request:expr, $told:ident, $schema:ident, $deadline:ident, $name:literal) => {{
        let mut request = Request::new($request);
        if let Some(deadline) = $deadline {
            request.set_timeout(deadline.saturating_duration_since(Instant::now()));
        }
        let mut stub = $stub;
        Task::spawn(async move {
            let pass = async {
                let mut answers = stub.$call(request).await?.into_inner();
                while let Some(answer) = answers.message().await? {
                    if $told.send(Ok(Some($schema.print($name, &answer)))).await.is_err() {
                        break;
                    }
                }
                Ok(())
            };
            let ended = match $deadline {
                Some(deadline) => timeout_at(deadline, pass).await.unwrap_or_else(|_| Err(late())),
                None => pass.await,
            };
            let _ = $told.send(ended.map(|()| None).map_err(|status: Status| status.into())).await;
        })
    }};
}

impl Streamed {
    pub fn open(client: &Client, schema: Schema, asked: &Value) -> Result<Self, Fault> {
        let rpc = text(&asked["rpc"]).rsplit('.').next().unwrap_or_default();
        let (told, answers) = mpsc::channel(1);
        let (requests, mut given) = mpsc::channel::<Vec<u8>>(1);
        let deadline = millis(&asked["timeout_ms"]).map(|span| Instant::now() + span);
        let (own, queues) = (schema.clone(), client.queues());
        let told_request = &asked["request"];
        let (request, task) = match rpc {
            "WatchPosition" => {
                let request: WatchPositionRequest = schema.parse("WatchPositionRequest", told_request)?;
                ("", answers!(queues, watch_position, request, told, own, deadline, "WatchPositionResponse"))
            }
            "WatchQueue" => {
                let request: WatchQueueRequest = schema.parse("WatchQueueRequest", told_request)?;
                ("", answers!(queues, watch_queue, request, told, own, deadline, "WatchQueueResponse"))
            }
            "Redrive" => {
                let request: RedriveRequest = schema.parse("RedriveRequest", told_request)?;
                ("", answers!(client.admin(), redrive, request, told, own, deadline, "RedriveResponse"))
            }
            "Produce" => {
                let sent =
                    ReceiverStream::new(given).map(|bytes| ProduceRequest::decode(&*bytes).expect("encoded by us"));
                ("ProduceRequest", answers!(queues, produce, sent, told, own, deadline, "ProduceResponse"))
            }
            "Consume" => {
                let sent =
                    ReceiverStream::new(given).map(|bytes| ConsumeRequest::decode(&*bytes).expect("encoded by us"));
                ("ConsumeRequest", answers!(queues, consume, sent, told, own, deadline, "ConsumeResponse"))
            }
            other => {
                given.close();
                return Err(Fault::own(format!("no stream {other}")));
            }
        };
        let (requests, answers) = (Mutex::new(Some(requests)), tokio::sync::Mutex::new(answers));
        Ok(Streamed { schema, request, requests, answers, task })
    }

    pub async fn send(&self, request: &Value) -> Answer {
        let encoded = self.schema.encode(self.request, request)?;
        let requests = self.requests.lock().unwrap().clone().ok_or_else(|| Fault::own("it is half-closed"))?;
        let _ = requests.send(encoded).await; // if the stream has ended, its reader is told why
        Ok(json!({}))
    }

    pub fn half_close(&self) -> Answer {
        self.requests.lock().unwrap().take();
        Ok(json!({}))
    }

    pub async fn next(&self, asked: &Value) -> Answer {
        let mut answers = self.answers.lock().await;
        match timeout(millis(&asked["timeout_ms"]).unwrap_or_default(), answers.recv()).await {
            Err(_) => Ok(json!({"timeout": true})),
            Ok(Some(Ok(Some(response)))) => Ok(json!({"response": response})),
            Ok(Some(Ok(None)) | None) => Ok(json!({"end": true})),
            Ok(Some(Err(error))) => Err(error.into()),
        }
    }
}

fn late() -> Status {
    Status::deadline_exceeded("the stream's deadline has come")
}

/// A lease's scope, open until it is told how to end.
pub struct Held {
    pub lease: Lease,
    end: Mutex<Option<oneshot::Sender<Value>>>,
    left: Mutex<Option<oneshot::Receiver<Result<(), Left>>>>,
    task: Task,
}

/// How a scope failed.
pub enum Left {
    AsTold(String),
    Layer(Error),
}

impl From<Error> for Left {
    fn from(error: Error) -> Self {
        Left::Layer(error)
    }
}

impl fmt::Display for Left {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Left::AsTold(reason) => to.write_str(reason),
            Left::Layer(error) => error.fmt(to),
        }
    }
}

fn ending(told: &Value) -> Result<Vec<u8>, Left> {
    match text(&told["how"]) {
        "fail" => Err(Left::AsTold(told["reason"].as_str().unwrap_or("told to fail").to_owned())),
        _ => Ok(bytes(&told["result"])),
    }
}

impl Held {
    pub async fn enter(queue: Queue, options: LeaseOptions) -> Result<Option<Self>, Fault> {
        let Some(lease) = queue.lease(&options).await? else { return Ok(None) };
        let (end, told) = oneshot::channel::<Value>();
        let (leaving, left) = oneshot::channel();
        let held = lease.clone();
        let task = Task::spawn(async move {
            let scope = held.scope(|_| async { ending(&told.await.unwrap_or_default()) });
            let _ = leaving.send(scope.await);
        });
        Ok(Some(Held { lease, end: Mutex::new(Some(end)), left: Mutex::new(Some(left)), task }))
    }

    pub async fn leave(&self, told: &Value) -> Answer {
        let (end, left) = (self.end.lock().unwrap().take(), self.left.lock().unwrap().take());
        let (Some(end), Some(left)) = (end, left) else { return Err(Fault::own("it has ended")) };
        let _ = end.send(told.clone());
        match left.await {
            Ok(Err(Left::Layer(error))) => Err(error.into()),
            Ok(_) => Ok(json!({})),
            Err(_) => Err(Fault::own("the scope broke off")),
        }
    }
}

/// A worker loop, whose handlers wait until they are told how to end.
pub struct Working {
    handling: Arc<Mutex<HashMap<String, oneshot::Sender<Value>>>>,
    stopping: Arc<Notify>,
    task: Task,
}

/// Tells that a handler was cancelled, unless it was told how to end.
struct Cancelled(Option<Value>);

impl Cancelled {
    fn disarm(&mut self) {
        self.0 = None;
    }
}

impl Drop for Cancelled {
    fn drop(&mut self) {
        if let Some(event) = &self.0 {
            tell(event);
        }
    }
}

impl Working {
    pub fn start(queue: Queue, options: WorkOptions, name: String, schema: Schema) -> Self {
        let handling: Arc<Mutex<HashMap<String, oneshot::Sender<Value>>>> = Arc::default();
        let stopping = Arc::new(Notify::new());
        let (waiting, stop) = (handling.clone(), stopping.clone());
        let ended = json!({"event": "ended", "handle": name});
        let count = Arc::new(AtomicU64::new(1));
        let handler = move |lease: Lease| {
            let own = format!("{name}/{}", count.fetch_add(1, Ordering::Relaxed));
            let (finish, finished) = oneshot::channel();
            waiting.lock().unwrap().insert(own.clone(), finish);
            let mut event = schema.lease(&lease);
            (event["event"], event["handle"], event["lease"]) =
                ("handling".into(), name.clone().into(), own.clone().into());
            tell(&event);
            let mut guard = Cancelled(Some(json!({"event": "cancelled", "handle": name, "lease": own})));
            async move {
                let told = finished.await.unwrap_or_default();
                guard.disarm();
                ending(&told)
            }
        };
        let task = Task::spawn(async move {
            let error =
                queue.work(options, stop.notified(), handler).await.err().map(|error| Fault::from(error).told());
            let mut event = ended;
            event["error"] = error.into();
            tell(&event);
        });
        Working { handling, stopping, task }
    }

    pub fn finish(&self, told: &Value) -> Answer {
        let finish = self.handling.lock().unwrap().remove(text(&told["lease"]));
        let _ = finish.ok_or_else(|| Fault::own("no such lease"))?.send(told.clone());
        Ok(json!({}))
    }

    pub fn stop(&self) -> Answer {
        self.stopping.notify_one();
        Ok(json!({}))
    }
}

/// A watch of the layer.
pub struct Watched {
    watch: tokio::sync::Mutex<Option<Watch>>,
    schema: Schema,
}

impl Watched {
    pub fn new(watch: Watch, schema: Schema) -> Self {
        Watched { watch: tokio::sync::Mutex::new(Some(watch)), schema }
    }

    pub async fn next(&self, asked: &Value) -> Answer {
        let mut watch = self.watch.lock().await;
        let Some(watch) = watch.as_mut() else { return Ok(json!({"end": true})) };
        match timeout(millis(&asked["timeout_ms"]).unwrap_or_default(), watch.next()).await {
            Err(_) => Ok(json!({"timeout": true})),
            Ok(Some(event)) => Ok(json!({"event": self.schema.event(&event?)})),
            Ok(None) => Ok(json!({"end": true})),
        }
    }
}
