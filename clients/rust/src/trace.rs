//! Carries trace context (W3C traceparent, tracestate) in messages' headers, through OpenTelemetry's API.

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId};

use crate::v1::Message;

const PARENT: &str = "traceparent";
const STATE: &str = "tracestate";

/// The messages with the context of the current span, if there is one, in the headers of those that bring none.
pub(crate) fn inject(mut messages: Vec<Message>) -> Vec<Message> {
    let span = Context::current().span().span_context().clone();
    let parent = format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags().to_u8());
    let own = [(PARENT, parent), (STATE, span.trace_state().header())];
    for message in messages.iter_mut().filter(|message| span.is_valid() && !message.headers.contains_key(PARENT)) {
        let told = own.iter().filter(|(_, value)| !value.is_empty());
        message.headers.extend(told.map(|(key, value)| ((*key).to_owned(), value.clone())));
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
