//! A watcher: tells where a message stands, how far its worker is, and how it ends.

use std::error::Error;
use std::time::Duration;

use headway::Message;
use headway::v1::watch_position_response::Event;
use headway::v1::{CreateRequest, DeleteRequest};
use tokio_stream::StreamExt;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let client = headway::connect(None)?;
    client.call(CreateRequest { queue: "rust-watch".into(), ..Default::default() }).await?;
    let queue = client.queue("rust-watch");
    queue.put(vec![Message { id: "picture".into(), ..Default::default() }], Duration::ZERO).await?;

    let mut lease = None;
    let mut watch = queue.watch(["picture"], false); // it goes on over a restart of the service
    while let Some(told) = watch.next().await {
        match told?.event {
            Some(Event::Position(place)) => {
                println!("number {} of {}", place.position, place.length);
                lease = queue.lease(Duration::ZERO, None).await?; // for this example: somebody works on it now
            }
            Some(Event::Leased(_)) => {
                if let Some(lease) = lease.take() {
                    println!("it is worked on");
                    lease.ack("640x480").await?;
                }
            }
            Some(Event::Finished(end)) => println!("{:?}: {}", end.outcome(), String::from_utf8(end.result)?),
            _ => {}
        }
    }

    client.call(DeleteRequest { queue: "rust-watch".into(), ..Default::default() }).await?;
    client.settled().await;
    Ok(())
}
