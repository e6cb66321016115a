//! Trace context through a queue: from the span that puts a message to whoever works on it.

use std::error::Error;
use std::time::Duration;

use headway::Message;
use headway::v1::{CreateRequest, DeleteRequest};
use opentelemetry::Context;
use opentelemetry::trace::{FutureExt, SpanContext, TraceContextExt, TraceFlags};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = headway::connect(None)?;
    client.call(CreateRequest { queue: "rust-trace".into(), ..Default::default() }).await?;
    let queue = client.queue("rust-trace");

    // A span that a tracer of yours would have begun.
    let span = SpanContext::new(7.into(), 9.into(), TraceFlags::SAMPLED, false, Default::default());
    let current = Context::new().with_remote_span_context(span);
    queue.put(vec![Message::default()], Duration::ZERO).with_context(current).await?;

    if let Some(lease) = queue.lease(Duration::ZERO, None).await? {
        println!("{}", lease.message.headers["traceparent"]);
        let parent = lease.message.trace_context(); // of the spans of whoever works on it
        println!("trace {}", parent.span().span_context().trace_id());
        lease.ack("").await?;
    }

    client.call(DeleteRequest { queue: "rust-trace".into(), ..Default::default() }).await?;
    client.settled().await;
    Ok(())
}
