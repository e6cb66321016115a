//! Reads what the headers say of a trace.
#![cfg(feature = "opentelemetry")]

use headway::Message;
use opentelemetry::trace::TraceContextExt;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

fn read(parent: &str, state: &str) -> Option<(String, String, u8, String)> {
    let headers = [("traceparent", parent), ("tracestate", state)].map(|(key, value)| (key.into(), value.into()));
    let context = Message { headers: headers.into(), ..Default::default() }.trace_context();
    let span = context.span().span_context().clone();
    let (trace, id) = (span.trace_id().to_string(), span.span_id().to_string());
    (span.is_valid() && span.is_remote()).then(|| (trace, id, span.trace_flags().to_u8(), span.trace_state().header()))
}

#[test]
fn a_context_is_read() {
    let told = read(&format!("00-{TRACE}-{SPAN}-01"), "a=1,b=2");
    assert_eq!(told, Some((TRACE.into(), SPAN.into(), 1, "a=1,b=2".into())));
    let newer = read(&format!("42-{TRACE}-{SPAN}-01-more"), "");
    assert_eq!(newer, Some((TRACE.into(), SPAN.into(), 1, String::new())));
}

#[test]
fn a_state_that_cannot_be_read_takes_nothing_from_the_parent() {
    assert_eq!(read(&format!("00-{TRACE}-{SPAN}-00"), "nonsense"), Some((TRACE.into(), SPAN.into(), 0, String::new())));
}

#[test]
fn what_is_no_context_is_none() {
    let zeros = "0".repeat(32);
    for parent in [
        String::new(),
        "00".to_owned(),
        format!("ff-{TRACE}-{SPAN}-01"),
        format!("00-{TRACE}-{SPAN}-01-more"),
        format!("00-{zeros}-{SPAN}-01"),
        format!("00-{TRACE}-{SPAN}x-01"),
        format!("00-{TRACE}-{SPAN}-0g"),
        format!("0é-{TRACE}-{SPAN}-01"),
    ] {
        assert_eq!(read(&parent, ""), None, "{parent:?}");
    }
}
