//! A worker: handles messages two at a time until the queue is closed and nothing is left.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use headway::v1::{CloseRequest, CreateRequest, DeleteRequest, DescribeRequest};
use headway::{Lease, Message};

async fn handle(lease: Arc<Lease>) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
    let name = std::str::from_utf8(&lease.message.payload)?; // an error: the queue's backoff, and another attempt
    lease.progress(0.5, "greeting").await?; // watchers are told; the lease is kept alive anyway
    Ok(format!("Hello, {name}").into_bytes()) // acked, with this result for those who watch
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = headway::connect(None)?;
    client.call(CreateRequest { queue: "rust-work".into(), ..Default::default() }).await?;
    let queue = client.queue("rust-work");
    for name in ["Ada", "Grace", "Barbara"] {
        let message = Message { payload: name.into(), ..Default::default() };
        queue.put(vec![message], Duration::ZERO).await?;
    }
    client.call(CloseRequest { queue: "rust-work".into(), ..Default::default() }).await?;

    let stop = async { drop(tokio::signal::ctrl_c().await) }; // then it finishes what it holds
    queue.work(2, None, stop, handle).await?;

    let told = client.call(DescribeRequest { queue: "rust-work".into() }).await?.queue.and_then(|queue| queue.counts);
    println!("{} greeted", told.unwrap_or_default().acked);
    client.call(DeleteRequest { queue: "rust-work".into(), ..Default::default() }).await?;
    client.settled().await;
    Ok(())
}
