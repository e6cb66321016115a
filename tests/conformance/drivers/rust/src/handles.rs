//! What stays open between requests: streams, leases, workers and watches.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headway::v1::*;
use headway::{Client, Error, Lease, Queue, Watch};
use prost::Message;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::{Request, Status};

use crate::wire::{Answer, Fault, Schema, bytes, millis, rpc, tell, text};

/// Something open: a task does the work, and ends with it.
pub struct Handle {
    task: Mutex<Option<JoinHandle<Result<(), Fault>>>>,
    pub part: Part,
}

pub enum Part {
    /// A lease's scope, and what tells it how to end.
    Lease(Arc<Lease>, Mutex<Option<oneshot::Sender<Value>>>),
    /// A worker's handlers by the names of their leases, each waiting to be told how to end; and the stop.
    Work(Handling, Arc<Notify>),
    /// What a stream or a watch told and nobody read yet; and the name of its requests and where they go.
    Stream(tokio::sync::Mutex<mpsc::Receiver<Told>>, &'static str, Mutex<Option<mpsc::Sender<Vec<u8>>>>),
}

type Handling = Arc<Mutex<HashMap<String, oneshot::Sender<Value>>>>;
type Told = Result<Value, Error>;

/// Makes a call that streams, then passes on its answers until its end.
macro_rules! answers {
    ($stub:expr, $call:ident, $request:expr, $told:ident, $schema:ident, $deadline:ident, $name:literal) => {{
        let mut request = Request::new($request);
        if let Some(deadline) = $deadline {
            request.set_timeout(deadline - Instant::now());
        }
        let mut stub = $stub;
        tokio::spawn(async move {
            let told = $told.clone();
            let pass = async move {
                let mut answers = stub.$call(request).await?.into_inner();
                while let Some(answer) = answers.message().await? {
                    let _ = told.send(Ok(json!({"response": $schema.print($name, &answer)}))).await;
                }
                Ok(json!({"end": true}))
            };
            let late = || Err(Status::deadline_exceeded("the stream's deadline has come"));
            let ended = match $deadline {
                Some(deadline) => timeout_at(deadline, pass).await.unwrap_or_else(|_| late()),
                None => pass.await,
            };
            let _ = $told.send(ended.map_err(|status: Status| status.into())).await;
            Ok(())
        })
    }};
}

impl Handle {
    fn new(task: JoinHandle<Result<(), Fault>>, part: Part) -> Self {
        Handle { task: Mutex::new(Some(task)), part }
    }

    /// Ends it from outside.
    pub async fn end(&self) {
        let task = self.task.lock().unwrap().take();
        if let Some(task) = task {
            task.abort();
            let _ = task.await;
        }
    }

    /// A call that streams, as the generated stub has it; its errors are the layer's.
    pub fn stream(client: &Client, schema: Schema, asked: &Value) -> Result<Self, Fault> {
        let (told, answers) = mpsc::channel(1);
        let (requests, given) = mpsc::channel::<Vec<u8>>(1);
        let deadline = millis(&asked["timeout_ms"]).map(|span| Instant::now() + span);
        let (queues, request, given) = (client.queues(), &asked["request"], ReceiverStream::new(given));
        let (name, task) = match rpc(asked) {
            "WatchPosition" => {
                let request: WatchPositionRequest = schema.parse("WatchPositionRequest", request)?;
                ("", answers!(queues, watch_position, request, told, schema, deadline, "WatchPositionResponse"))
            }
            "WatchQueue" => {
                let request: WatchQueueRequest = schema.parse("WatchQueueRequest", request)?;
                ("", answers!(queues, watch_queue, request, told, schema, deadline, "WatchQueueResponse"))
            }
            "Redrive" => {
                let request: RedriveRequest = schema.parse("RedriveRequest", request)?;
                ("", answers!(client.admin(), redrive, request, told, schema, deadline, "RedriveResponse"))
            }
            "Produce" => {
                let sent = given.map(|bytes| ProduceRequest::decode(&*bytes).expect("encoded by us"));
                ("ProduceRequest", answers!(queues, produce, sent, told, schema, deadline, "ProduceResponse"))
            }
            "Consume" => {
                let sent = given.map(|bytes| ConsumeRequest::decode(&*bytes).expect("encoded by us"));
                ("ConsumeRequest", answers!(queues, consume, sent, told, schema, deadline, "ConsumeResponse"))
            }
            other => return Err(Fault::Own(format!("no stream {other}"))),
        };
        Ok(Self::new(task, Part::Stream(answers.into(), name, Mutex::new(Some(requests)))))
    }

    /// A watch of the layer.
    pub fn watch(mut watch: Watch, schema: Schema) -> Self {
        let (told, events) = mpsc::channel(1);
        let task = tokio::spawn(async move {
            while let Some(event) = watch.next().await {
                let _ = told.send(event.map(|event| json!({"event": schema.event(&event)}))).await;
            }
            let _ = told.send(Ok(json!({"end": true}))).await;
            Ok(())
        });
        Self::new(task, Part::Stream(events.into(), "", Mutex::default()))
    }

    pub async fn next(&self, asked: &Value) -> Answer {
        let Part::Stream(told, ..) = &self.part else { return Err(Fault::Own("no stream".into())) };
        match timeout(millis(&asked["timeout_ms"]).unwrap_or_default(), told.lock().await.recv()).await {
            Ok(told) => Ok(told.unwrap_or(Ok(json!({"end": true})))?),
            Err(_) => Ok(json!({"timeout": true})),
        }
    }

    pub async fn send(&self, schema: &Schema, asked: &Value) -> Answer {
        let Part::Stream(_, name, requests) = &self.part else { return Err(Fault::Own("no stream".into())) };
        let requests = requests.lock().unwrap().clone().ok_or_else(|| Fault::Own("it is half-closed".into()))?;
        let _ = requests.send(schema.encode(name, &asked["request"])?).await; // if it has ended, its reader is told why
        Ok(json!({}))
    }

    pub fn half_close(&self) -> Answer {
        if let Part::Stream(_, _, requests) = &self.part {
            requests.lock().unwrap().take();
        }
        Ok(json!({}))
    }

    /// A lease's scope, open until it is told how to end.
    pub fn scope(lease: Arc<Lease>) -> Self {
        let (end, told) = oneshot::channel();
        let held = lease.clone();
        let task = tokio::spawn(async move { Ok(held.finish(ending(&told.await.unwrap_or_default())).await?) });
        Self::new(task, Part::Lease(lease, Mutex::new(Some(end))))
    }

    pub fn lease(&self) -> Result<&Lease, Fault> {
        let Part::Lease(lease, _) = &self.part else { return Err(Fault::Own("no lease".into())) };
        Ok(lease)
    }

    pub async fn leave(&self, told: &Value) -> Answer {
        let Part::Lease(_, end) = &self.part else { return Err(Fault::Own("no lease".into())) };
        let (end, task) = (end.lock().unwrap().take(), self.task.lock().unwrap().take());
        let (Some(end), Some(task)) = (end, task) else { return Err(Fault::Own("it has ended".into())) };
        let _ = end.send(told.clone());
        task.await.expect("a scope does not panic").map(|()| json!({}))
    }

    /// A worker loop, whose handlers wait until they are told how to end.
    pub fn work(queue: Queue, concurrency: usize, lasts: Option<Duration>, name: String, schema: Schema) -> Self {
        let (handling, stopping, count) = (Handling::default(), Arc::<Notify>::default(), AtomicU64::new(1));
        let (waiting, stop, worker) = (handling.clone(), stopping.clone(), name.clone());
        let handler = move |lease: Arc<Lease>| {
            let own = format!("{name}/{}", count.fetch_add(1, Ordering::Relaxed));
            let (finish, finished) = oneshot::channel();
            waiting.lock().unwrap().insert(own.clone(), finish);
            let mut event = schema.lease(&lease);
            (event["event"], event["handle"], event["lease"]) = ("handling".into(), json!(name), json!(own));
            tell(&event);
            let cancelled = Cancelled(json!({"event": "cancelled", "handle": name, "lease": own}));
            async move {
                let told = finished.await.unwrap_or_default();
                std::mem::forget(cancelled);
                ending(&told)
            }
        };
        let task = tokio::spawn(async move {
            let ended = queue.work(concurrency, lasts, stop.notified(), handler).await;
            let error = ended.err().map(|error| Fault::from(error).told());
            tell(&json!({"event": "ended", "handle": worker, "error": error}));
            Ok(())
        });
        Self::new(task, Part::Work(handling, stopping))
    }

    pub fn finish(&self, told: &Value) -> Answer {
        let Part::Work(handling, _) = &self.part else { return Err(Fault::Own("no worker".into())) };
        let finish = handling.lock().unwrap().remove(text(&told["lease"]));
        let _ = finish.ok_or_else(|| Fault::Own("no such lease".into()))?.send(told.clone());
        Ok(json!({}))
    }

    pub fn stop(&self) -> Answer {
        if let Part::Work(_, stopping) = &self.part {
            stopping.notify_one();
        }
        Ok(json!({}))
    }
}

fn ending(told: &Value) -> Result<Vec<u8>, Fault> {
    match text(&told["how"]) {
        "fail" => Err(Fault::Own(told["reason"].as_str().unwrap_or("told to fail").to_owned())),
        _ => Ok(bytes(&told["result"])),
    }
}

/// Tells that a handler was dropped before it was told how to end.
struct Cancelled(Value);

impl Drop for Cancelled {
    fn drop(&mut self) {
        tell(&self.0);
    }
}
