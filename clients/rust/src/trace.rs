//! Carries trace context (W3C traceparent, tracestate) in messages' headers, through OpenTelemetry's API.

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId};

use prost::Message as _;

use crate::v1::Message;

const PARENT: &str = "traceparent";
const STATE: &str = "tracestate";

// What the service takes: so many headers, and by its default so many bytes in a message.
const MOST_HEADERS: usize = 64;
const MOST_BYTES: usize = 1 << 20;

/// The messages with the context of the current span, if there is one, in the headers of those that bring none and have
/// room for it: none is to be refused for what its producer did not write.
pub(crate) fn inject(mut messages: Vec<Message>) -> Vec<Message> {
    let span = Context::current().span().span_context().clone();
    let parent = format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags().to_u8());
    let own = [(PARENT, parent), (STATE, span.trace_state().header())];
    let told = own.into_iter().filter(|(_, value)| !value.is_empty()).map(|(key, value)| (key.to_owned(), value));
    let told = Message { headers: told.collect(), ..Default::default() };
    for message in messages.iter_mut().filter(|message| span.is_valid() && !message.headers.contains_key(PARENT)) {
        let has_room = message.headers.len() + told.headers.len() <= MOST_HEADERS;
        if has_room && message.encoded_len() + told.encoded_len() <= MOST_BYTES {
            message.headers.extend(told.headers.clone());
        }
    }
    messages
}

impl Message {
    /// The context of the span that put the message, as a remote parent for what is done with it; an empty context if
    /// the headers hold none. Only with the feature `opentelemetry`.
    pub fn trace_context(&self) -> Context {
        let state = self.headers.get(STATE).map_or("", |state| state);
        let remote = self.headers.get(PARENT).and_then(|parent| read(parent, state));
        remote.map_or_else(Context::new, |remote| Context::new().with_remote_span_context(remote))
    }
}

fn read(parent: &str, state: &str) -> Option<SpanContext> {
    let parts: Vec<_> = parent.split('-').collect();
    let [version, trace, span, flags, ..] = parts[..] else { return None };
    let is_sound = [version, trace, span, flags].map(str::len) == [2, 32, 16, 2];
    if !is_sound || version == "ff" || (version == "00" && parts.len() > 4) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?);
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    Some(SpanContext::new(trace, span, flags, true, state.parse().unwrap_or_default())).filter(SpanContext::is_valid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_that_finds_no_room_is_left_out() {
        let remote = read("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "").unwrap();
        let _current = Context::new().with_remote_span_context(remote).attach();
        let headers = (0..64).map(|n| (n.to_string(), "own".to_owned())).collect();
        let many = Message { headers, ..Default::default() };
        let full = Message { payload: vec![0; MOST_BYTES - 10], ..Default::default() };
        let sent = inject(vec![many, full, Message::default()]);
        assert_eq!(sent.iter().map(|each| each.headers.contains_key(PARENT)).collect::<Vec<_>>(), [false, false, true]);
    }
}
