//! Makes messages, and carries the standard library's spans onto the wire. The service judges ranges.

use std::time::Duration;

use crate::v1::{Message, message::Available};

const NANOS: u32 = 1_000_000; // of a millisecond
const LONGEST: Duration = Duration::from_secs(1_000_000_000); // longer than anything the service accepts

/// The span on the wire, rounded up to whole milliseconds.
#[must_use]
pub fn to_wire(span: Duration) -> prost_types::Duration {
    let span = span.min(LONGEST);
    let whole = Duration::new(span.as_secs(), 0) + Duration::from_millis(span.subsec_nanos().div_ceil(NANOS).into());
    prost_types::Duration { seconds: whole.as_secs().cast_signed(), nanos: whole.subsec_nanos().cast_signed() }
}

/// The span from the wire; `None` for one that is unset or negative.
pub(crate) fn from_wire(span: Option<&prost_types::Duration>) -> Option<Duration> {
    span.and_then(|span| Duration::try_from(*span).ok()).map(|span| span.min(LONGEST))
}

impl Message {
    /// A message with this payload and nothing else; any field may be set after that.
    #[must_use]
    pub fn new(payload: impl Into<Vec<u8>>) -> Self {
        Message { payload: payload.into(), ..Default::default() }
    }

    /// With an id of the sender's: it is accepted once, and a Put of it may be repeated.
    #[must_use]
    pub fn with_id(self, id: impl Into<String>) -> Self {
        Message { id: id.into(), ..self }
    }

    /// With one more header.
    #[must_use]
    pub fn with_header(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(key.into(), value.into());
        self
    }

    /// That joins the line so long after the put.
    #[must_use]
    pub fn with_delay(self, delay: Duration) -> Self {
        Message { available: Some(Available::Delay(to_wire(delay))), ..self }
    }

    /// That expires so long after the put.
    #[must_use]
    pub fn with_time_to_live(self, span: Duration) -> Self {
        Message { time_to_live: Some(to_wire(span)), ..self }
    }
}

impl<T: Into<Vec<u8>>> From<T> for Message {
    fn from(payload: T) -> Self {
        Message::new(payload)
    }
}
