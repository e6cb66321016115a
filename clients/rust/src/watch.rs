//! Watches messages until their end: opens a new stream wherever one breaks.

use std::{collections::HashMap, pin::Pin};

use async_stream::try_stream;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::Stream;
use tonic::Code;
use tracing::warn;

use crate::client::{backoff, late};
use crate::v1::{ErrorReason, Finished, MessageIds, Outcome, Position, WatchPositionRequest, WatchPositionResponse};
use crate::v1::{position, watch_position_request::Subject, watch_position_response::Event};
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
    pub fn watch(&self, ids: impl IntoIterator<Item = impl Into<String>>, attended: bool) -> Watch {
        let queue = self.clone();
        let mut left: HashMap<String, Option<(i64, i32)>> = ids.into_iter().map(|id| (id.into(), None)).collect();
        let mut give_up_at = Some(Instant::now() + queue.client.call_timeout); // None: something was told
        let (mut last_as_of, mut failures) = (None, 0);
        Box::pin(try_stream! {
            while !left.is_empty() {
                let subject = Some(Subject::Messages(MessageIds { ids: left.keys().cloned().collect(), attended }));
                let mut stub = queue.client.queues();
                let opening = stub.watch_position(WatchPositionRequest { queue: queue.name.clone(), subject });
                let error = match timeout(queue.client.call_timeout, opening).await {
                    Ok(Ok(answers)) => {
                        let mut answers = answers.into_inner();
                        loop {
                            match answers.message().await {
                                Ok(Some(answer)) => {
                                    (give_up_at, failures) = (None, 0);
                                    if is_news(&mut left, &answer) {
                                        last_as_of = answer.as_of.or(last_as_of);
                                        yield answer;
                                    }
                                }
                                Ok(None) => break Error::own(Code::Unavailable, "the stream ended before its last message"),
                                Err(status) => break status.into(),
                            }
                        }
                    }
                    Ok(Err(status)) => status.into(),
                    Err(_) => late(),
                };
                let is_gone = matches!(error.reason, ErrorReason::QueueNotFound | ErrorReason::QueueDeleted);
                for (id, _) in left.extract_if(|_, _| is_gone && give_up_at.is_none()) {
                    let end = Finished { id, outcome: Outcome::Deleted.into(), ..Default::default() };
                    yield WatchPositionResponse { as_of: last_as_of, event: Some(Event::Finished(end)), sequence: 0 };
                }
                if left.is_empty() {
                    return;
                }
                failures += 1;
                let pause = backoff(failures, error.retry_after);
                warn!(queue = queue.name, %error, "the watch is broken");
                if !error.is_passing() || give_up_at.is_some_and(|end| Instant::now() + pause >= end) {
                    Err(error)?;
                }
                sleep(pause).await;
            }
        })
    }
}

/// Whether an answer says something new: not older than what was said before, and about somebody here.
fn is_news(left: &mut HashMap<String, Option<(i64, i32)>>, answer: &WatchPositionResponse) -> bool {
    let id = match &answer.event {
        Some(Event::Position(Position { subject: Some(position::Subject::Id(id)), .. })) => id,
        Some(Event::Leased(told)) => &told.id,
        Some(Event::Finished(told)) => return left.remove(&told.id).is_some(),
        _ => return false,
    };
    let at = answer.as_of.map(|at| (at.seconds, at.nanos));
    let is_newest = left.get(id).is_some_and(|before| at >= *before);
    is_newest && left.insert(id.clone(), at).is_some()
}
