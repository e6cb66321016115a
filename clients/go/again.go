package headway

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
)

const (
	mostTries    = 5
	firstBackoff = 100 * time.Millisecond
	mostBackoff  = 5 * time.Second
)

// again makes a call, and makes it again while the service is away or the answer does not come: five times at most,
// within wait and the call timeout.
//
// One that is not safe is repeated only if nothing happened. The call is told what is left of its wait, and whether an
// earlier try may have taken effect. The error is that of the last try, or of the one whose outcome is unknown if the
// last one only was not served.
func (c *Client) again(
	ctx context.Context, wait time.Duration, safe bool, call func(ctx context.Context, wait time.Duration, again bool) error,
) error {
	until := time.Now().Add(wait)
	limited, cancel := context.WithTimeout(ctx, wait+c.callTimeout)
	defer cancel()
	grace := c.callTimeout
	if safe {
		grace /= 2 // so that an answer that never comes leaves time for another try
	}
	var lost error
	for failures := 1; ; failures++ {
		left := max(0, time.Until(until))
		err := within(limited, left+grace, func(ctx context.Context) error { return call(ctx, left, lost != nil) })
		var failed *Error
		if err == nil || !errors.As(err, &failed) {
			return err
		}
		unserved := failed.Code == codes.Unavailable || failed.OutcomeUnknown() && failed.Code != codes.Canceled
		if failures == mostTries || !unserved || failed.OutcomeUnknown() && !safe || !pause(limited, failures, err) {
			if lost != nil && unserved {
				return lost
			}
			return err
		}
		if failed.OutcomeUnknown() {
			lost = err
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
	span := backoffSpan(failures)
	var failed *Error
	if errors.As(err, &failed) {
		span = max(span, failed.RetryAfter)
	}
	if deadline, has := ctx.Deadline(); has && time.Until(deadline) <= span {
		return false
	}
	return sleep(ctx, span)
}

func backoffSpan(failures int) time.Duration {
	span := min(mostBackoff, firstBackoff<<min(failures-1, 16))
	return span/2 + rand.N(span/2)
}

// sleep returns false if ctx ends first.
func sleep(ctx context.Context, span time.Duration) bool {
	timer := time.NewTimer(span)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
