//! JSON: the messages' canonical form, errors, and what a lease and a watch tell.

use std::{fmt, io::Write, time::Duration};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use headway::v1::WatchPositionResponse;
use headway::v1::watch_position_response::Event;
use headway::{Error, ErrorReason, Lease};
use opentelemetry::trace::TraceContextExt;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage};
use serde_json::{Value, json};
use tonic::{Code, Status};

pub type Answer = Result<Value, Fault>;

/// What a request is refused with.
pub enum Fault {
    Layer(Error),
    Own(String),
}

impl Fault {
    pub fn told(&self) -> Value {
        let error = match self {
            Fault::Layer(error) => error,
            Fault::Own(text) => &Error::from(Status::invalid_argument(text)),
        };
        let reason = Some(error.reason).filter(|reason| *reason != ErrorReason::Unspecified);
        let reason = reason.and_then(|reason| reason.as_str_name().strip_prefix("ERROR_REASON_"));
        let violations = error.violations.iter();
        let violations = violations.map(|each| json!({"field": each.field, "description": each.description}));
        json!({
            "code": if matches!(self, Fault::Own(_)) { "DRIVER".to_owned() } else { code_name(error.code) },
            "reason": reason,
            "metadata": error.metadata,
            "retry_after_ms": error.retry_after.map(|span| span.as_millis() as u64),
            "violations": violations.collect::<Vec<_>>(),
            "outcome_unknown": error.outcome_unknown,
            "text": error.to_string(),
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Layer(error) => error.fmt(to),
            Fault::Own(text) => to.write_str(text),
        }
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Layer(error)
    }
}

fn code_name(code: Code) -> String {
    let name = format!("{code:?}");
    let letters = name.char_indices().map(|(at, letter)| match letter.is_uppercase() && at > 0 {
        true => format!("_{letter}"),
        false => letter.to_uppercase().to_string(),
    });
    letters.collect()
}

/// The descriptors of the messages.
#[derive(Clone, Default)]
pub struct Schema(DescriptorPool);

impl Schema {
    pub fn read(path: &str) -> Self {
        let described = std::fs::read(path).expect("the schema is a file");
        Schema(DescriptorPool::decode(&*described).expect("the schema is a descriptor set"))
    }

    pub fn parse<T: Message + Default>(&self, name: &str, told: &Value) -> Result<T, Fault> {
        T::decode(&*self.encode(name, told)?).map_err(|error| Fault::Own(error.to_string()))
    }

    pub fn encode(&self, name: &str, told: &Value) -> Result<Vec<u8>, Fault> {
        let kind = self.0.get_message_by_name(&format!("headway.v1.{name}"));
        let kind = kind.ok_or_else(|| Fault::Own(format!("no message {name}")))?;
        let told = if told.is_null() { &json!({}) } else { told };
        let message = DynamicMessage::deserialize(kind, told).map_err(|error| Fault::Own(error.to_string()))?;
        Ok(message.encode_to_vec())
    }

    pub fn print(&self, name: &str, message: &impl Message) -> Value {
        let kind = self.0.get_message_by_name(&format!("headway.v1.{name}")).expect("the schema has the message");
        let message = DynamicMessage::decode(kind, &*message.encode_to_vec()).expect("it was encoded just now");
        serde_json::to_value(message).expect("a message is JSON")
    }

    pub fn lease(&self, lease: &Lease) -> Value {
        let span = lease.message.trace_context().span().span_context().clone();
        let parent = format!("00-{}-{}-{:02x}", span.trace_id(), span.span_id(), span.trace_flags().to_u8());
        let (message, ticket) = (self.print("Message", &lease.message), lease.delivery.ticket.to_string());
        let parent = span.is_valid().then_some(parent);
        json!({"message": message, "attempt": lease.delivery.attempt, "ticket": ticket, "traceparent": parent})
    }

    pub fn event(&self, told: &WatchPositionResponse) -> Value {
        let (mut kind, mut fields) = match told.event.as_ref() {
            Some(Event::Position(position)) => ("position", self.print("Position", position)),
            Some(Event::Leased(leased)) => ("leased", self.print("Leased", leased)),
            Some(Event::Finished(finished)) => ("finished", self.print("Finished", finished)),
            _ => return json!({"kind": null}),
        };
        if fields["state"] == "STATE_DELAYED" {
            kind = "delayed";
        }
        fields["kind"] = kind.into();
        fields
    }
}

/// Writes a line to stdout, whole.
pub fn tell(line: &Value) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).expect("stdout is open");
}

pub fn text(told: &Value) -> &str {
    told.as_str().unwrap_or_default()
}

/// The name of the RPC that is asked for, without its service.
pub fn rpc(asked: &Value) -> &str {
    text(&asked["rpc"]).rsplit('.').next().unwrap_or_default()
}

pub fn bytes(told: &Value) -> Vec<u8> {
    BASE64_STANDARD.decode(text(told)).expect("bytes are base64")
}

pub fn millis(told: &Value) -> Option<Duration> {
    told.as_f64().map(|span| Duration::from_secs_f64(span / 1000.0))
}
