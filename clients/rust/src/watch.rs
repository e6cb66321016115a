//! Watches messages until their end: opens a new stream wherever one breaks.

use std::{collections::HashMap, pin::Pin};

use async_stream::try_stream;
use prost_types::Timestamp;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::Stream;
use tonic::{Code, Streaming};
use tracing::warn;

use crate::client::{backoff, late};
use crate::v1::{ErrorReason, Finished, MessageIds, Outcome, WatchPositionRequest, WatchPositionResponse, position};
use crate::v1::{watch_position_request::Subject, watch_position_response::Event};
use crate::{error::Error, queue::Queue};

/// What a watch tells, one answer of the service after the other; dropping it ends the watch.
pub type Watch = Pin<Box<dyn Stream<Item = Result<WatchPositionResponse, Error>> + Send>>;

impl Queue {
    /// Tells where messages are, each at once and then whenever that changes, until the last of them is finished.
    ///
    /// `attended`: ending the watch, also by a broken connection, withdraws those that still wait. It asks anew when the
    /// stream breaks, for as long as the service is away, and then tells how a message ended while that is remembered.
    /// What it tells of a message never goes back in time. A message that is not known is finished with
    /// `Outcome::Unspecified`. At most 10,000 ids.
    ///
    /// Fails with QUEUE_NOT_FOUND, and with whatever the first stream failed with for the client's `call_timeout`.
    #[must_use]
    pub fn watch(&self, ids: impl IntoIterator<Item = impl Into<String>>, attended: bool) -> Watch {
        let queue = self.clone();
        let mut left: HashMap<String, Option<Timestamp>> = ids.into_iter().map(|id| (id.into(), None)).collect();
        let give_up_at = Instant::now() + queue.client.call_timeout;
        let (mut last_as_of, mut is_heard, mut failures) = (None, false, 0);
        Box::pin(try_stream! {
            while !left.is_empty() {
                let ids = left.keys().cloned().collect();
                let mut answers = queue.open(MessageIds { ids, attended }).await;
                let error = loop {
                    let (answer, rest) = match answers {
                        Ok(Some(answer)) => answer,
                        Ok(None) => break Error::own(Code::Unavailable, "the stream ended before its last message"),
                        Err(error) => break error,
                    };
                    (is_heard, failures) = (true, 0);
                    if let Some(news) = note(&mut left, answer) {
                        last_as_of = news.as_of.or(last_as_of);
                        yield news;
                    }
                    if left.is_empty() {
                        return;
                    }
                    answers = next(rest).await;
                };
                if is_heard && matches!(error.reason, ErrorReason::QueueNotFound | ErrorReason::QueueDeleted) {
                    for (id, _) in left.drain() {
                        let end = Finished { id, outcome: Outcome::Deleted.into(), ..Default::default() };
                        yield WatchPositionResponse { as_of: last_as_of, event: Some(Event::Finished(end)), sequence: 0 };
                    }
                    return;
                }
                failures += 1;
                let pause = backoff(failures, error.retry_after);
                if failures == 1 {
                    warn!(queue = queue.name, %error, "the watch is broken");
                }
                if !error.is_passing() || (!is_heard && Instant::now() + pause >= give_up_at) {
                    Err(error)?;
                }
                sleep(pause).await;
            }
        })
    }

    /// The first answer of a new stream, which has to come within the time of a call, and the rest.
    async fn open(&self, messages: MessageIds) -> Answers {
        let request = WatchPositionRequest { queue: self.name.clone(), subject: Some(Subject::Messages(messages)) };
        let mut stub = self.client.queues();
        let first = async { next(stub.watch_position(request).await?.into_inner()).await };
        timeout(self.client.call_timeout, first).await.unwrap_or_else(|_| Err(late()))
    }
}

type Answers = Result<Option<(WatchPositionResponse, Streaming<WatchPositionResponse>)>, Error>;

async fn next(mut answers: Streaming<WatchPositionResponse>) -> Answers {
    Ok(answers.message().await?.map(|answer| (answer, answers)))
}

/// What an answer says that is news; `None` if it is older than what was said before, or about nobody here.
fn note(left: &mut HashMap<String, Option<Timestamp>>, answer: WatchPositionResponse) -> Option<WatchPositionResponse> {
    let id = match answer.event.as_ref()? {
        Event::Position(told) => match told.subject.as_ref()? {
            position::Subject::Id(id) => id,
            _ => return None,
        },
        Event::Leased(told) => &told.id,
        Event::Finished(told) => {
            left.remove(&told.id)?;
            return Some(answer);
        }
        Event::Granted(_) => return None,
    };
    let told_at = answer.as_of.map(|at| (at.seconds, at.nanos));
    let before = left.get_mut(id)?;
    if told_at < before.map(|at| (at.seconds, at.nanos)) {
        return None;
    }
    *before = answer.as_of;
    Some(answer)
}
