//! A first job: puts one message, and works on it.

use std::error::Error;
use std::time::Duration;

use headway::Message;
use headway::v1::{CreateRequest, DeleteRequest, Policy};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = headway::connect(None)?; // HEADWAY_ADDRESS, else 127.0.0.1:7420
    let policy = Policy { bound: 1000, ..Default::default() };
    client.call(CreateRequest { queue: "rust-first".into(), policy: Some(policy) }).await?;

    let queue = client.queue("rust-first");
    let message = Message { id: "welcome-ada".into(), payload: "Hello, Ada".into(), ..Default::default() };
    let put = queue.put(vec![message], Duration::ZERO).await?; // how long it may wait for room
    println!("position {}", put[0].position);

    if let Some(lease) = queue.lease(Duration::from_secs(5), None).await? {
        println!("{}", String::from_utf8_lossy(&lease.message.payload));
        lease.ack("sent").await?; // without it, the message goes back to the head of the line when the lease is dropped
    }

    client.call(DeleteRequest { queue: "rust-first".into(), ..Default::default() }).await?;
    client.settled().await; // leases that were dropped are given back
    Ok(())
}
