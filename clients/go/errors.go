package headway

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"headway.dev/go/headwaypb"
)

const (
	domain       = "headway.v1"
	reasonPrefix = "ERROR_REASON_"
)

// Error is a call, or one message of a batch, that failed. Find it with errors.As, or ask with [Is].
//
// One that says CANCELLED or DEADLINE_EXCEEDED is context.Canceled or context.DeadlineExceeded to errors.Is.
type Error struct {
	// Code is the canonical status.
	Code codes.Code
	// Reason is the service's reason; unspecified if the answer named none: the connection failed, or this client does
	// not know the reason.
	Reason headwaypb.ErrorReason
	// Text is for people and may change.
	Text string
	// Metadata is what the reason promises, for example "queue".
	Metadata map[string]string
	// RetryAfter says how long to wait before trying again; 0 if the service did not say.
	RetryAfter time.Duration
	// Violations are the refused fields of an INVALID_ARGUMENT.
	Violations []*errdetails.BadRequest_FieldViolation

	status *status.Status
}

// Is tells whether err is an [*Error] with this reason.
func Is(err error, reason headwaypb.ErrorReason) bool {
	var failed *Error
	return errors.As(err, &failed) && failed.Reason == reason
}

// OutcomeUnknown tells that the call may or may not have taken effect: the service says so, or its answer did not come.
// It is safe to make it again with the same ids and leases.
func (e *Error) OutcomeUnknown() bool {
	if e.Reason != headwaypb.ErrorReason_ERROR_REASON_UNSPECIFIED {
		return e.Reason == headwaypb.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN
	}
	switch e.Code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown, codes.Internal:
		return true
	}
	return false
}

// ReasonName is the reason in words, for example "QUEUE_FULL"; empty if the answer named none.
func (e *Error) ReasonName() string {
	if e.Reason == headwaypb.ErrorReason_ERROR_REASON_UNSPECIFIED {
		return ""
	}
	return strings.TrimPrefix(e.Reason.String(), reasonPrefix)
}

// Error tells the reason, or else the code, and the text.
func (e *Error) Error() string {
	label := e.ReasonName()
	if label == "" {
		label = e.Code.String()
	}
	return fmt.Sprintf("headway: %s: %s", label, e.Text)
}

// Unwrap lets errors.Is find the context's error.
func (e *Error) Unwrap() error {
	switch e.Code {
	case codes.Canceled:
		return context.Canceled
	case codes.DeadlineExceeded:
		return context.DeadlineExceeded
	}
	return nil
}

// GRPCStatus is the status as it came, for package google.golang.org/grpc/status.
func (e *Error) GRPCStatus() *status.Status {
	if e.status != nil {
		return e.status
	}
	return status.New(e.Code, e.Text)
}

// ErrorOf is the failure of one item of a batch, such as [headwaypb.PutResult.Error], as an [*Error]; nil for nil.
func ErrorOf(item *headwaypb.Status) error {
	if item == nil {
		return nil
	}
	return &Error{Code: codes.Code(item.Code), Reason: item.Reason, Text: item.Message, Metadata: item.Metadata}
}

// typed is the error of a call as an *Error; nil for nil.
func typed(err error) error {
	var known *Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	told := status.Convert(err)
	failed := &Error{Code: told.Code(), Text: told.Message(), Metadata: map[string]string{}, status: told}
	for _, detail := range told.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			if detail.Domain == domain {
				failed.Reason = headwaypb.ErrorReason(headwaypb.ErrorReason_value[reasonPrefix+detail.Reason])
				failed.Metadata = detail.Metadata
			}
		case *errdetails.RetryInfo:
			failed.RetryAfter = detail.RetryDelay.AsDuration()
		case *errdetails.BadRequest:
			failed.Violations = append(failed.Violations, detail.FieldViolations...)
		}
	}
	return failed
}

// passing tells whether the same call may succeed later without anybody changing it: the service is away, busy or
// paused.
func passing(err error) bool {
	var failed *Error
	if !errors.As(err, &failed) {
		return false
	}
	switch failed.Code {
	case codes.NotFound, codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented:
		return false
	}
	return failed.Reason != headwaypb.ErrorReason_ERROR_REASON_QUEUE_CLOSED &&
		failed.Reason != headwaypb.ErrorReason_ERROR_REASON_QUEUE_DRAINED
}
