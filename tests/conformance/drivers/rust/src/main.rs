//! The conformance driver of Rust: does what the lines on stdin ask, by the layer of `clients/rust`.

mod handles;
mod wire;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use headway::v1::*;
use headway::{Client, Queue, connect, connect_tls};
use opentelemetry::Context;
use opentelemetry::trace::{FutureExt, SpanContext, TraceContextExt, TraceFlags};
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tonic::Status;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use handles::Handle;
use wire::{Answer, Fault, Schema, bytes, millis, rpc, tell, text};

#[tokio::main]
async fn main() {
    let schema = std::env::args().nth(1).expect("usage: driver SCHEMA");
    let driver = Arc::new(Driver { schema: Schema::read(&schema), ..Default::default() });
    let (to, mut lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || std::io::stdin().lines().for_each(|line| drop(to.send(line.expect("stdin is text")))));
    while let Some(line) = lines.recv().await {
        let request: Value = serde_json::from_str(&line).expect("a line is JSON");
        let cancelled = Arc::new(Notify::new());
        let id = request["id"].as_u64().expect("a request has an id");
        driver.asked.lock().unwrap().insert(id, cancelled.clone());
        let driver = driver.clone();
        tokio::spawn(async move {
            let answer = tokio::select! {
                answer = driver.answer(&request) => answer,
                () = cancelled.notified() => Err(Fault::Layer(Status::cancelled("cancelled by the driver").into())),
            };
            driver.asked.lock().unwrap().remove(&id);
            tell(&match answer {
                Ok(ok) => json!({"id": id, "ok": ok}),
                Err(fault) => json!({"id": id, "error": fault.told()}),
            });
        });
    }
    let clients: Vec<String> = driver.clients.lock().unwrap().keys().cloned().collect();
    for client in clients {
        let _ = driver.disconnect(&client).await;
    }
}

#[derive(Default)]
struct Driver {
    schema: Schema,
    clients: Mutex<HashMap<String, Client>>,
    handles: Mutex<HashMap<(String, String), Arc<Handle>>>,
    asked: Mutex<HashMap<u64, Arc<Notify>>>,
}

/// Makes the unary call of a name by its request's type.
macro_rules! call {
    ($driver:ident, $request:ident, $rpc:ident, $($name:literal: $kind:ident),*) => {
        match $rpc {
            $($name => {
                let mut client = $driver.client($request)?;
                client.call_timeout = millis(&$request["timeout_ms"]).or(client.call_timeout);
                client.attempts = $request["attempts"].as_u64().map_or(client.attempts, |attempts| attempts as u32);
                let message: $kind = $driver.schema.parse(stringify!($kind), &$request["request"])?;
                let response = client.call(message).await?;
                Ok(json!({"response": $driver.schema.print(concat!($name, "Response"), &response)}))
            })*
            other => Err(Fault::Own(format!("no RPC {other}"))),
        }
    };
}

impl Driver {
    async fn answer(&self, request: &Value) -> Answer {
        let done = Ok(json!({}));
        match text(&request["op"]) {
            "hello" => {
                let features = ["call", "stream", "lease", "work", "watch", "trace"];
                Ok(json!({"language": "rust", "version": headway::VERSION, "features": features}))
            }
            "connect" => {
                let mut client = connected(request)?;
                client.call_timeout = millis(&request["options"]["call_timeout_ms"]);
                self.clients.lock().unwrap().insert(text(&request["client"]).to_owned(), client);
                done
            }
            "disconnect" => self.disconnect(text(&request["client"])).await,
            "cancel" => {
                let target = request["target"].as_u64().unwrap_or_default();
                if let Some(cancelled) = self.asked.lock().unwrap().get(&target) {
                    cancelled.notify_one();
                }
                done
            }
            "call" => {
                let rpc = rpc(request);
                call!(self, request, rpc, "Create": CreateRequest, "Describe": DescribeRequest, "List": ListRequest,
                    "Update": UpdateRequest, "Close": CloseRequest, "Delete": DeleteRequest, "Put": PutRequest,
                    "Get": GetRequest, "Ack": AckRequest, "Delay": DelayRequest, "Extend": ExtendRequest,
                    "Withdraw": WithdrawRequest, "Peek": PeekRequest, "Pause": PauseRequest, "Resume": ResumeRequest,
                    "Purge": PurgeRequest, "Repair": RepairRequest, "Check": CheckRequest,
                    "ListLeased": ListLeasedRequest, "ListDead": ListDeadRequest,
                    "GetServerInfo": GetServerInfoRequest)
            }
            "open" => self.keep(request, Handle::stream(&self.client(request)?, self.schema.clone(), request)?),
            "send" => self.handle(request)?.send(&self.schema, request).await,
            "half_close" => self.handle(request)?.half_close(),
            "next" | "watch_next" => self.handle(request)?.next(request).await,
            "put" => self.put(request).await,
            "lease" => {
                let (wait, lease) = (millis(&request["wait_ms"]).unwrap_or_default(), millis(&request["lease_ms"]));
                let Some(lease) = self.queue(request)?.lease(wait, lease).await? else {
                    return Ok(json!({"empty": true}));
                };
                let told = self.schema.lease(&lease);
                self.keep(request, Handle::scope(lease)).map(|_| told)
            }
            "lease_end" if request["how"] == "cancel" => {
                let client = self.client(request)?;
                self.take(request)?.end().await; // and its last clone is dropped
                client.settled().await;
                done
            }
            "lease_end" => self.take(request)?.leave(request).await,
            "lease_ack" => {
                self.handle(request)?.lease()?.ack(bytes(&request["result"])).await?;
                done
            }
            "lease_delay" => {
                let (delay, reason) = (millis(&request["delay_ms"]), text(&request["reason"]));
                self.handle(request)?.lease()?.delay(delay, reason).await?;
                done
            }
            "lease_progress" => {
                let (fraction, note) = (request["fraction"].as_f64().unwrap_or_default(), text(&request["note"]));
                self.handle(request)?.lease()?.progress(fraction, note).await?;
                done
            }
            "lease_is_lost" => Ok(json!({"lost": self.handle(request)?.lease()?.lost.is_cancelled()})),
            "work" => {
                let (concurrency, lease) =
                    (request["concurrency"].as_u64().unwrap_or(1) as usize, millis(&request["lease_ms"]));
                let name = text(&request["handle"]).to_owned();
                self.keep(request, Handle::work(self.queue(request)?, concurrency, lease, name, self.schema.clone()))
            }
            "finish" => self.handle(request)?.finish(request),
            "work_stop" => self.handle(request)?.stop(),
            "watch" => {
                let ids: Vec<_> = request["ids"].as_array().into_iter().flatten().map(text).collect();
                let watch = self.queue(request)?.watch(ids, request["attended"] == true);
                self.keep(request, Handle::watch(watch, self.schema.clone()))
            }
            "close" | "watch_close" => {
                self.take(request)?.end().await;
                done
            }
            other => Err(Fault::Own(format!("no operation {other}"))),
        }
    }

    async fn put(&self, request: &Value) -> Answer {
        let given = request["messages"].as_array().into_iter().flatten();
        let messages = given.map(|each| {
            let headers = each["headers"].as_object().into_iter().flatten();
            let headers = headers.map(|(key, value)| (key.clone(), text(value).to_owned())).collect();
            let (id, payload) = (text(&each["id"]).to_owned(), bytes(&each["payload"]));
            let mut message = Message { id, payload, headers, ..Default::default() };
            message.available = millis(&each["delay_ms"]).map(headway::span).map(message::Available::Delay);
            message.time_to_live = millis(&each["ttl_ms"]).map(headway::span);
            message
        });
        let (queue, wait) = (self.queue(request)?, millis(&request["wait_ms"]).unwrap_or_default());
        let results = queue.put(messages.collect(), wait).with_context(span(request)).await?;
        Ok(json!({"results": results.iter().map(|each| self.schema.print("PutResult", each)).collect::<Vec<_>>()}))
    }

    async fn disconnect(&self, name: &str) -> Answer {
        let client = self.clients.lock().unwrap().remove(name).ok_or_else(|| Fault::Own("no such client".into()))?;
        let mut ended = Vec::new();
        self.handles.lock().unwrap().retain(|key, handle| {
            let is_ours = key.0 == name;
            ended.extend(is_ours.then(|| handle.clone()));
            !is_ours
        });
        for handle in ended {
            handle.end().await;
        }
        client.settled().await;
        Ok(json!({}))
    }

    fn client(&self, request: &Value) -> Result<Client, Fault> {
        let clients = self.clients.lock().unwrap();
        clients.get(text(&request["client"])).cloned().ok_or_else(|| Fault::Own("no such client".into()))
    }

    fn queue(&self, request: &Value) -> Result<Queue, Fault> {
        Ok(self.client(request)?.queue(text(&request["queue"])))
    }

    fn keep(&self, request: &Value, handle: Handle) -> Answer {
        self.handles.lock().unwrap().insert(key(request), Arc::new(handle));
        Ok(json!({}))
    }

    fn handle(&self, request: &Value) -> Result<Arc<Handle>, Fault> {
        self.handles.lock().unwrap().get(&key(request)).cloned().ok_or_else(|| Fault::Own("no such handle".into()))
    }

    fn take(&self, request: &Value) -> Result<Arc<Handle>, Fault> {
        self.handles.lock().unwrap().remove(&key(request)).ok_or_else(|| Fault::Own("no such handle".into()))
    }
}

/// In plain text, or by TLS if the options name an authority; a token's file is read for each call.
fn connected(request: &Value) -> Result<Client, Fault> {
    let addresses = request["addresses"].as_array().into_iter().flatten();
    let addresses = addresses.map(text).collect::<Vec<_>>().join(",");
    let file = |name: &str| request["options"][name].as_str().map(std::fs::read).transpose();
    let read = |name| file(name).map_err(|error| Fault::Own(format!("{name}: {error}")));
    let Some(ca) = read("ca")? else { return Ok(connect(Some(&addresses))?) };
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca));
    if let (Some(cert), Some(key)) = (read("cert")?, read("key")?) {
        tls = tls.identity(Identity::from_pem(cert, key));
    }
    let client = connect_tls(Some(&addresses), |endpoint| endpoint.tls_config(tls.clone()))?;
    let Some(path) = request["options"]["token_file"].as_str().map(str::to_owned) else { return Ok(client) };
    Ok(client.with_token(move || std::fs::read_to_string(&path).ok()))
}

fn key(request: &Value) -> (String, String) {
    (text(&request["client"]).to_owned(), text(&request["handle"]).to_owned())
}

/// A context in which the span is current that a request tells, if it tells one.
fn span(request: &Value) -> Context {
    let parts: Vec<_> = text(&request["traceparent"]).split('-').collect();
    let [_, trace, span, flags] = parts[..] else { return Context::new() };
    let state = text(&request["tracestate"]).parse().unwrap_or_default();
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).unwrap_or_default());
    let (trace, span) = (u128::from_str_radix(trace, 16), u64::from_str_radix(span, 16));
    let told = SpanContext::new(trace.unwrap_or(0).into(), span.unwrap_or(0).into(), flags, true, state);
    Context::new().with_remote_span_context(told)
}
