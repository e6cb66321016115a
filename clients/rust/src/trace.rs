//! Carries trace context (W3C traceparent, tracestate) in messages' headers, through OpenTelemetry's API.

use std::str::FromStr;

use opentelemetry::Context;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};

use crate::lease::Lease;
use crate::v1::Message;

const PARENT: &str = "traceparent";
const STATE: &str = "tracestate";

/// The messages with the context of the current span, if there is one, in the headers of those that bring none.
pub(crate) fn inject(mut messages: Vec<Message>) -> Vec<Message> {
    let current = Context::current();
    let span = current.span().span_context().clone();
    for message in messages.iter_mut().filter(|message| span.is_valid() && !message.headers.contains_key(PARENT)) {
        let parent = format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags().to_u8());
        message.headers.insert(PARENT.to_owned(), parent);
        let state = span.trace_state().header();
        if !state.is_empty() {
            message.headers.insert(STATE.to_owned(), state);
        }
    }
    messages
}

impl Lease {
    /// The context of the span that put the message, as a remote parent for what is done with it; an empty context if
    /// the headers hold none. Only with the feature `opentelemetry`.
    #[must_use]
    pub fn context(&self) -> Context {
        let headers = &self.message().headers;
        let remote = headers.get(PARENT).and_then(|parent| read(parent, headers.get(STATE).map_or("", |state| state)));
        remote.map_or_else(Context::new, |remote| Context::new().with_remote_span_context(remote))
    }
}

fn read(parent: &str, state: &str) -> Option<SpanContext> {
    let mut parts = parent.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_sound = [(version, 2), (trace, 32), (span, 16), (flags, 2)].iter().all(|(part, size)| part.len() == *size);
    if !is_sound || version == "ff" || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?);
    let state = TraceState::from_str(state).unwrap_or_default();
    let ids = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    Some(SpanContext::new(ids.0, ids.1, flags, true, state)).filter(SpanContext::is_valid)
}
