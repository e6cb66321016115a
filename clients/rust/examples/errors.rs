//! What a failed call tells.

use std::time::Duration;

use headway::v1::{CreateRequest, DeleteRequest, Policy};
use headway::{Error, ErrorReason, Message};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = headway::connect(None)?;
    let policy = Policy { bound: 1, ..Default::default() };
    client.call(CreateRequest { queue: "rust-errors".into(), policy: Some(policy) }).await?;
    let queue = client.queue("rust-errors");
    queue.put(vec![Message::default()], Duration::ZERO).await?;

    match queue.put(vec![Message::default()], Duration::ZERO).await {
        Err(error) if error.is(ErrorReason::QueueFull) => {
            println!("{:?}: the bound of {} is {}", error.code, error.metadata["queue"], error.metadata["bound"]);
            println!("again after {:?}; did it happen? {}", error.retry_after, error.outcome_unknown);
        }
        other => drop(other?),
    }
    let error = client.queue("a:x:y").put(vec![Message::default()], Duration::ZERO).await.unwrap_err();
    println!("{:?}: {}", error.reason, error.violations[0].field);

    client.call(DeleteRequest { queue: "rust-errors".into(), ..Default::default() }).await?;
    Ok(())
}
