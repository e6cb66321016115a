package headway

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"headway.dev/go/headwaypb"
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

var (
	// The codes that say, without a reason of ours, that no answer came.
	lostCodes = []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown, codes.Internal}
	// What no waiting mends; every other failure may pass.
	lastingCodes   = []codes.Code{codes.NotFound, codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented}
	lastingReasons = []headwaypb.ErrorReason{headwaypb.ErrorReason_ERROR_REASON_QUEUE_CLOSED, headwaypb.ErrorReason_ERROR_REASON_QUEUE_DRAINED}
)

// Is tells whether err is an [*Error] with this reason.
func Is(err error, reason headwaypb.ErrorReason) bool {
	var failed *Error
	return errors.As(err, &failed) && failed.Reason == reason
}

// OutcomeUnknown tells that the call may or may not have taken effect: the service says so, or its answer did not come.
// It is safe to make it again with the same ids and leases.
func (e *Error) OutcomeUnknown() bool {
	if e.Reason != 0 {
		return e.Reason == headwaypb.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN
	}
	return slices.Contains(lostCodes, e.Code)
}

// ReasonName is the reason in words, for example "QUEUE_FULL"; empty if the answer named none.
func (e *Error) ReasonName() string {
	return strings.TrimPrefix(strings.TrimPrefix(e.Reason.String(), "ERROR_REASON_"), "UNSPECIFIED")
}

// Error tells the reason, or else the code, and the text.
func (e *Error) Error() string {
	return "headway: " + cmp.Or(e.ReasonName(), e.Code.String()) + ": " + e.Text
}

// Unwrap lets errors.Is find the context's error.
func (e *Error) Unwrap() error {
	return map[codes.Code]error{codes.Canceled: context.Canceled, codes.DeadlineExceeded: context.DeadlineExceeded}[e.Code]
}

// GRPCStatus is the status as it came, for package google.golang.org/grpc/status.
func (e *Error) GRPCStatus() *status.Status { return e.status }

// ErrorOf is the failure of one item of a batch, such as [headwaypb.PutResult.Error], as an [*Error]; nil for nil.
func ErrorOf(item *headwaypb.Status) error {
	if item == nil {
		return nil
	}
	code := codes.Code(item.Code)
	return &Error{Code: code, Reason: item.Reason, Text: item.Message, Metadata: item.Metadata, status: status.New(code, item.Message)}
}

// typed is the error of a call as an *Error. Those that are none of gRPC's stay as they are.
func typed(err error) error {
	told, is := status.FromError(err)
	if err == nil || err == io.EOF || !is {
		return err
	}
	failed := &Error{Code: told.Code(), Text: told.Message(), Metadata: map[string]string{}, status: told}
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

// passing tells whether the same call may succeed later without anybody changing it: the service is away, busy or
// paused.
func passing(err error) bool {
	var failed *Error
	return errors.As(err, &failed) && !slices.Contains(lastingCodes, failed.Code) && !slices.Contains(lastingReasons, failed.Reason)
}

// again makes a call, and makes it again while the service is away or no answer comes, within wait and the call
// timeout. One that is not safe is made again only if nothing happened. It is told what is left of its wait, and whether
// an earlier try may have taken effect. The error is that of the last try, or of the one whose outcome is unknown if
// the last one only was not served.
func (c *Client) again(ctx context.Context, wait time.Duration, safe bool, call func(context.Context, time.Duration, bool) error) error {
	until, grace := time.Now().Add(wait), c.callTimeout
	ctx, cancel := context.WithTimeout(ctx, wait+grace)
	defer cancel()
	if safe {
		grace /= 2 // so that an answer that never comes leaves time for another try
	}
	var lost, failed *Error
	for failures := 1; ; failures++ {
		left := max(0, time.Until(until))
		err := within(ctx, left+grace, func(ctx context.Context) error { return call(ctx, left, lost != nil) })
		if !errors.As(err, &failed) {
			return err
		}
		unknown := failed.OutcomeUnknown()
		unserved := failed.Code == codes.Unavailable || unknown && failed.Code != codes.Canceled
		if unserved && unknown {
			lost = failed
		}
		if !unserved || unknown && !safe || !pause(ctx, failures, failed) {
			if lost != nil && unserved {
				return lost
			}
			return failed
		}
	}
}

func within(ctx context.Context, limit time.Duration, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return call(ctx)
}

// pause waits after the n-th failure in a row: doubling from 0.1 s to 5 s, with jitter, never shorter than the service
// asked for. It returns false, at once, if ctx ends before that.
func pause(ctx context.Context, failures int, err error) bool {
	span := min(5*time.Second, 100*time.Millisecond<<min(failures-1, 16))
	span = span/2 + rand.N(span/2)
	var failed *Error
	if errors.As(err, &failed) {
		span = max(span, failed.RetryAfter)
	}
	if deadline, has := ctx.Deadline(); has && time.Until(deadline) <= span {
		return false
	}
	return sleep(ctx, span)
}

// sleep returns false if ctx ends first.
func sleep(ctx context.Context, span time.Duration) bool {
	select {
	case <-time.After(span):
		return true
	case <-ctx.Done():
		return false
	}
}
