//! What can go wrong: one typed error, and how a failed call or a refused message becomes one.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use tonic::{Code, ConnectError, Status, TimeoutExpired};
use tonic_types::{FieldViolation, StatusExt};

use crate::v1::{self, ErrorReason};

const DOMAIN: &str = "headway.v1";
const PREFIX: &str = "ERROR_REASON_";

/// A call, or one message of a batch, that failed. What is known of it are the fields of [`Failure`].
#[derive(Debug)]
pub struct Error(Box<Failure>);

/// What is known of an [`Error`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Failure {
    /// The canonical gRPC status.
    pub code: Code,
    /// The service's reason; `Unspecified` if the answer named none (the connection failed, or no answer came in time).
    pub reason: ErrorReason,
    /// What the reason promises, for example `queue`.
    pub metadata: HashMap<String, String>,
    /// How long to wait at least before trying again, if the service said so.
    pub retry_after: Option<Duration>,
    /// The refused fields of an INVALID_ARGUMENT, and why.
    pub violations: Vec<FieldViolation>,
    /// The call may or may not have taken effect; it is safe to repeat with the same ids and leases.
    pub outcome_unknown: bool,
    /// For people; may change.
    pub text: String,
    pub(crate) never_sent: bool,
}

impl Error {
    /// Whether the service gave this reason.
    #[must_use]
    pub fn is(&self, reason: ErrorReason) -> bool {
        self.reason == reason
    }

    /// The reason in words, for example "QUEUE_FULL"; `None` if the answer named none.
    #[must_use]
    pub fn reason_name(&self) -> Option<&'static str> {
        self.reason.as_str_name().strip_prefix(PREFIX).filter(|_| self.reason != ErrorReason::Unspecified)
    }

    /// The same call may succeed later without anybody changing it: the service is away, busy or paused.
    pub(crate) fn is_passing(&self) -> bool {
        use Code::{InvalidArgument, NotFound, PermissionDenied, Unauthenticated, Unimplemented};
        !matches!(self.code, NotFound | InvalidArgument | Unauthenticated | PermissionDenied | Unimplemented)
            && !matches!(self.reason, ErrorReason::QueueClosed | ErrorReason::QueueDrained)
    }

    /// The call was not served, or its answer did not come; but for a cancellation, which is somebody's will.
    pub(crate) fn is_unserved(&self) -> bool {
        matches!(self.code, Code::Unavailable | Code::DeadlineExceeded)
            || (self.outcome_unknown && self.code != Code::Cancelled)
    }

    pub(crate) fn new(code: Code, reason: ErrorReason, metadata: HashMap<String, String>, text: &str) -> Self {
        let is_silent = matches!(
            code,
            Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown | Code::Internal
        );
        Error(Box::new(Failure {
            code,
            reason,
            metadata,
            retry_after: None,
            violations: Vec::new(),
            outcome_unknown: reason == ErrorReason::OutcomeUnknown || (reason == ErrorReason::Unspecified && is_silent),
            text: text.to_owned(),
            never_sent: false,
        }))
    }

    /// One that the service did not name.
    pub(crate) fn own(code: Code, text: &str) -> Self {
        Self::new(code, ErrorReason::Unspecified, HashMap::new(), text)
    }
}

impl Deref for Error {
    type Target = Failure;

    fn deref(&self) -> &Failure {
        &self.0
    }
}

impl fmt::Display for Error {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason_name() {
            Some(name) if self.text.starts_with(name) => to.write_str(&self.text),
            Some(name) => write!(to, "{name}: {}", self.text),
            None => write!(to, "{:?}: {}", self.code, self.text),
        }
    }
}

impl std::error::Error for Error {}

impl From<Status> for Error {
    /// The typed error of a failed call; details that cannot be read leave the canonical code to speak.
    fn from(status: Status) -> Self {
        let details = status.get_error_details();
        let named = details.error_info().filter(|named| named.domain == DOMAIN).cloned();
        let reason = named.as_ref().and_then(|named| ErrorReason::from_str_name(&format!("{PREFIX}{}", named.reason)));
        let metadata = named.map(|named| named.metadata).unwrap_or_default();
        // A status with a source was not sent by the service: the connection failed, or tonic's own clock ran out.
        let code = match std::error::Error::source(&status) {
            Some(cause) if has::<TimeoutExpired>(cause) => Code::DeadlineExceeded,
            Some(_) => Code::Unavailable,
            None => status.code(),
        };
        let mut error = Self::new(code, reason.unwrap_or_default(), metadata, status.message());
        error.0.retry_after = details.retry_info().and_then(|info| info.retry_delay);
        error.0.violations = details.bad_request().map(|bad| bad.field_violations.clone()).unwrap_or_default();
        error.0.never_sent = std::error::Error::source(&status).is_some_and(has::<ConnectError>);
        error
    }
}

impl From<v1::Status> for Error {
    /// The typed error of one message of a batch.
    fn from(status: v1::Status) -> Self {
        let reason = status.reason();
        Self::new(Code::from_i32(status.code), reason, status.metadata, &status.message)
    }
}

fn has<T: std::error::Error + 'static>(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause.is::<T>() || cause.source().is_some_and(has::<T>)
}
