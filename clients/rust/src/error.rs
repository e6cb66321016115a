//! What can go wrong: one typed error, and how a failed call becomes one.

use std::{collections::HashMap, time::Duration};

use tonic::{Code, ConnectError, Status, TimeoutExpired};
use tonic_types::{FieldViolation, StatusExt};

use crate::{client::OF_CALLERS, v1::ErrorReason};

/// A call that failed. Where one message of a batch is refused, its result says so by a [`crate::v1::Status`], with the
/// same code, reason and metadata.
#[derive(Debug, thiserror::Error)]
#[error("{code:?}, {reason:?}: {text}")]
pub struct Error {
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
    pub fn is(&self, reason: ErrorReason) -> bool {
        self.reason == reason
    }

    /// The same call may succeed later without anybody changing it: the service is away, busy or paused.
    pub(crate) fn is_passing(&self) -> bool {
        // Too large for gRPC itself, which says no time (P-ERR-4), or, where it is an answer, for tonic.
        let large = matches!((self.code, self.retry_after), (Code::ResourceExhausted, None) | (Code::OutOfRange, _));
        self.is_blind() && !large && self.code != Code::Unimplemented && !OF_CALLERS.contains(&self.code)
    }

    /// It does not say what became of an earlier try of the same call: it was refused unseen, or not answered.
    pub(crate) fn is_blind(&self) -> bool {
        let tells = matches!(self.code, Code::NotFound | Code::AlreadyExists | Code::InvalidArgument);
        !tells && !self.is(ErrorReason::QueueDrained)
    }
}

impl From<Status> for Error {
    /// The typed error of a failed call; details that cannot be read leave the canonical code to speak.
    fn from(status: Status) -> Self {
        use Code::{Cancelled, DeadlineExceeded, Internal, Unavailable, Unknown};
        let details = status.get_error_details();
        let named = details.error_info().filter(|named| named.domain == "headway.v1");
        let reason = named.and_then(|named| ErrorReason::from_str_name(&format!("ERROR_REASON_{}", named.reason)));
        // A status with a source was not sent by the service: the connection failed, or tonic's own clock ran out.
        let cause = std::error::Error::source(&status);
        let broken = |cause| if has::<TimeoutExpired>(cause) { DeadlineExceeded } else { Unavailable };
        let code = cause.map_or(status.code(), broken);
        let never_sent = cause.is_some_and(has::<ConnectError>);
        let is_silent = !never_sent && matches!(code, Unavailable | DeadlineExceeded | Cancelled | Unknown | Internal);
        Error {
            code,
            reason: reason.unwrap_or_default(),
            metadata: named.map(|named| named.metadata.clone()).unwrap_or_default(),
            retry_after: details.retry_info().and_then(|info| info.retry_delay),
            violations: details.bad_request().map(|bad| bad.field_violations.clone()).unwrap_or_default(),
            outcome_unknown: reason.map_or(is_silent, |reason| reason == ErrorReason::OutcomeUnknown),
            text: status.message().to_owned(),
            never_sent,
        }
    }
}

fn has<T: std::error::Error + 'static>(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause.is::<T>() || cause.source().is_some_and(has::<T>)
}
