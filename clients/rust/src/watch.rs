//! Watches messages until their end: opens a new stream wherever one breaks.

use std::pin::Pin;

use async_stream::try_stream;
use tokio::time::sleep;
use tokio_stream::Stream;
use tonic::Status;
use tracing::warn;

use crate::v1::{MessageIds, WatchPositionRequest, WatchPositionResponse};
use crate::v1::{watch_position_request::Subject, watch_position_response::Event};
use crate::{client::backoff, error::Error, queue::Queue};

/// What a watch tells, one answer of the service after the other; dropping it ends the watch.
pub type Watch = Pin<Box<dyn Stream<Item = Result<WatchPositionResponse, Error>> + Send>>;

impl Queue {
    /// Tells where messages are, each at once and then whenever that changes, until the last of them is finished.
    ///
    /// `attended`: ending the watch, also by a broken connection, withdraws those that still wait. It asks anew when the
    /// stream breaks, for as long as the service is away; then each is told at once again, also how it ended, while that
    /// is remembered. A message that is not known is finished with `Outcome::Unspecified`. At most 10,000 ids.
    ///
    /// Fails with what would not go away by itself, such as QUEUE_NOT_FOUND.
    pub fn watch(&self, ids: impl IntoIterator<Item = impl Into<String>>, attended: bool) -> Watch {
        let queue = self.clone();
        let mut left = MessageIds { ids: ids.into_iter().map(Into::into).collect(), attended };
        let (mut answers, mut failures) = (None, 0);
        Box::pin(try_stream! {
            while !left.ids.is_empty() {
                let told = async {
                    if answers.is_none() {
                        let subject = Some(Subject::Messages(left.clone()));
                        let request = WatchPositionRequest { queue: queue.name.clone(), subject };
                        answers = Some(queue.client.queues().watch_position(request).await?.into_inner());
                    }
                    let told = answers.as_mut().expect("it is open").message().await?;
                    told.ok_or_else(|| Status::unavailable("the stream ended before its last message"))
                };
                match told.await.map_err(Error::from) {
                    Ok(told) => {
                        failures = 0;
                        if let Some(Event::Finished(end)) = &told.event {
                            left.ids.retain(|id| *id != end.id);
                        }
                        yield told;
                    }
                    Err(error) if !error.is_passing() => Err(error)?,
                    Err(error) => {
                        (answers, failures) = (None, failures + 1);
                        warn!(queue = queue.name, %error, "the watch is broken, and opened again");
                        sleep(backoff(failures, &error)).await;
                    }
                }
            }
        })
    }
}
