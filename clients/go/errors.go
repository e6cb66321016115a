package headway

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"headway.dev/go/headwaypb"
)

// Error is a call, or one message of a batch, that failed. Find it with errors.As, or ask with [Is].
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
}

// The codes that say, without a reason of ours, that no answer came. CANCELLED, if it was not cancelled here, is
// gRPC's word in a service that goes down, or that has no room for the call.
var lostCodes = []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown, codes.Internal}

// Those of failures that may pass: the service is away, or a foreign client holds a role. Who is busy says when to come
// again; RESOURCE_EXHAUSTED without that is gRPC's own word for what is too large, now and later.
var passing = append([]codes.Code{codes.FailedPrecondition}, lostCodes...)

// Those that end what was served when a token expires, or a grant changes; the token of now may have it go on.
var ofCallers = []codes.Code{codes.Unauthenticated, codes.PermissionDenied}

// Those of answers to a repeat that tell what became of an earlier try, too; others refuse a call without a look.
var tellingCodes = []codes.Code{codes.NotFound, codes.AlreadyExists, codes.InvalidArgument, codes.FailedPrecondition}

// Is tells whether err is an [*Error] with this reason.
func Is(err error, reason headwaypb.ErrorReason) bool {
	var failed *Error
	return errors.As(Typed(err), &failed) && failed.Reason == reason
}

// OutcomeUnknown tells that the call may or may not have taken effect: the service says so, or its answer did not come.
// It is safe to make it again with the same ids and leases.
func (e *Error) OutcomeUnknown() bool {
	return Is(e, headwaypb.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN) || e.Reason == 0 && slices.Contains(lostCodes, e.Code)
}

// ReasonName is the reason in words, for example "QUEUE_FULL"; empty if the answer named none.
func (e *Error) ReasonName() string {
	return strings.TrimPrefix(strings.TrimPrefix(e.Reason.String(), "ERROR_REASON_"), "UNSPECIFIED")
}

// Error tells the reason, or else the code, and the text.
func (e *Error) Error() string {
	return "headway: " + cmp.Or(e.ReasonName(), e.Code.String()) + ": " + e.Text
}

// ErrorOf is the failure of one item of a batch, such as [headwaypb.PutResult.Error], as an [*Error]; nil for nil.
func ErrorOf(item *headwaypb.Status) error {
	if item == nil {
		return nil
	}
	return &Error{Code: codes.Code(item.Code), Reason: item.Reason, Text: item.Message, Metadata: item.Metadata}
}

// Typed is err as an [*Error], if it is one of gRPC's. Calls, and all functions of this package, fail with such errors
// by themselves; what the streams of the stubs answer needs it.
func Typed(err error) error {
	told, is := status.FromError(err)
	if err == nil || !is {
		return err
	}
	failed := &Error{Code: told.Code(), Text: told.Message()}
	for _, detail := range told.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			if detail.Domain == "headway.v1" {
				failed.Reason = headwaypb.ErrorReason(headwaypb.ErrorReason_value["ERROR_REASON_"+detail.Reason])
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
