//! How a failed call becomes an error.

use std::collections::HashMap;
use std::time::Duration;

use headway::{Error, ErrorReason};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

fn metadata(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn reason_metadata_and_retry_after_come_out_of_the_details() {
    let mut details = ErrorDetails::with_retry_info(Some(Duration::from_millis(1500)));
    details.set_error_info("QUEUE_FULL", "headway.v1", metadata(&[("queue", "mail"), ("bound", "7")]));
    let error = Error::from(Status::with_error_details(Code::ResourceExhausted, "no room", details));
    assert!(error.is(ErrorReason::QueueFull));
    assert_eq!(error.metadata, metadata(&[("queue", "mail"), ("bound", "7")]));
    assert_eq!(error.retry_after, Some(Duration::from_millis(1500)));
    assert!(!error.outcome_unknown);
    assert_eq!(error.to_string(), "ResourceExhausted, QueueFull: no room");
}

#[test]
fn violations_come_out_of_the_details() {
    let details = ErrorDetails::with_bad_request_violation("queue", "is empty");
    let error = Error::from(Status::with_error_details(Code::InvalidArgument, "refused", details));
    let [violation] = &error.violations[..] else { panic!("{error:?}") };
    assert_eq!((&*violation.field, &*violation.description), ("queue", "is empty"));
}

#[test]
fn a_reason_of_another_domain_or_an_unknown_one_leaves_the_code_to_speak() {
    for (reason, domain) in [("QUEUE_FULL", "elsewhere"), ("NEWER_THAN_THIS_CLIENT", "headway.v1")] {
        let details = ErrorDetails::with_error_info(reason, domain, HashMap::new());
        let error = Error::from(Status::with_error_details(Code::NotFound, "none", details));
        assert!(error.is(ErrorReason::Unspecified));
        assert_eq!(error.to_string(), "NotFound, Unspecified: none");
    }
}

#[test]
fn the_outcome_is_unknown_without_a_reason_only_where_no_answer_came() {
    use Code::{Cancelled, DeadlineExceeded, Internal, Unavailable, Unknown};
    for code in (1..=16).map(Code::from_i32) {
        let is_unknown = [Cancelled, DeadlineExceeded, Internal, Unavailable, Unknown].contains(&code);
        assert_eq!(Error::from(Status::new(code, "")).outcome_unknown, is_unknown, "{code:?}");
    }
    for (reason, is_unknown) in [("OUTCOME_UNKNOWN", true), ("STORE_UNAVAILABLE", false), ("SHUTTING_DOWN", false)] {
        let details = ErrorDetails::with_error_info(reason, "headway.v1", HashMap::new());
        let error = Error::from(Status::with_error_details(Unavailable, "", details));
        assert_eq!(error.outcome_unknown, is_unknown, "{reason}");
    }
}

#[test]
fn details_that_cannot_be_read_leave_the_code_to_speak() {
    let error = Error::from(Status::with_details(Code::AlreadyExists, "there", b"\xff\xff"[..].to_owned().into()));
    assert_eq!((error.code, error.reason), (Code::AlreadyExists, ErrorReason::Unspecified));
}
