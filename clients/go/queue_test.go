package headway

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"headway.dev/go/headwaypb"
)

func TestALeaseIsAckedWithWhatItsHandlerReturns(t *testing.T) {
	s := settles(acked, delayed, extended)
	found, err := connect(t, s).Queue("q").Lease(t.Context(), func(_ context.Context, lease *Lease) ([]byte, error) {
		return append(lease.Message.Payload, "ed"...), nil
	}, Options{})
	if !found || err != nil {
		t.Fatal(found, err)
	}
	if asked := requests[*headwaypb.AckRequest](s); len(asked) != 1 || string(asked[0].Result) != "printed" || asked[0].Leases[0] != "token" {
		t.Errorf("asked %v", asked)
	}
	if request := requests[*headwaypb.GetRequest](s)[0]; request.Lease != nil || request.MaxMessages != 1 {
		t.Errorf("asked %v", request)
	}
}

func TestALeaseWhoseHandlerFailsGoesToTheBackoffWithAReason(t *testing.T) {
	s := settles(acked, delayed, extended)
	_, err := connect(t, s).Queue("q").Lease(t.Context(), fails, Options{})
	if !errors.Is(err, errHandler) {
		t.Errorf("failed with %v", err)
	}
	asked := requests[*headwaypb.DelayRequest](s)
	if len(asked) != 1 || asked[0].Available != nil || asked[0].KeepAttempt || asked[0].Reason != "no paper" {
		t.Errorf("asked %v", asked)
	}
}

func TestAFailureWithoutAWordIsAFailure(t *testing.T) {
	s := settles(acked, delayed, extended)
	wordless := func(context.Context, *Lease) ([]byte, error) { return nil, errors.New("") }
	_, _ = connect(t, s).Queue("q").Lease(t.Context(), wordless, Options{})
	if asked := requests[*headwaypb.DelayRequest](s); len(asked) != 1 || asked[0].KeepAttempt {
		t.Errorf("asked %v", asked)
	}
}

func TestALeaseThatIsCancelledGoesBackForFree(t *testing.T) {
	s := settles(acked, delayed, extended)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := connect(t, s).Queue("q").Lease(ctx, func(ctx context.Context, _ *Lease) ([]byte, error) {
		cancel()
		<-ctx.Done()
		return nil, ctx.Err()
	}, Options{})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("failed with %v", err)
	}
	if asked := requests[*headwaypb.DelayRequest](s); len(asked) != 1 || asked[0].GetDelay() == nil || !asked[0].KeepAttempt {
		t.Errorf("asked %v", asked)
	}
}

func TestALeaseThatItsHandlerSettledStaysSo(t *testing.T) {
	s := settles(acked, delayed, extended)
	_, err := connect(t, s).Queue("q").Lease(t.Context(), func(ctx context.Context, lease *Lease) ([]byte, error) {
		return nil, lease.Delay(ctx, time.Minute, "later")
	}, Options{})
	if err != nil || len(requests[*headwaypb.AckRequest](s)) != 0 {
		t.Error("it was settled twice", err)
	}
	if reason := requests[*headwaypb.DelayRequest](s)[0].Reason; reason != "later" {
		t.Errorf("the reason is %q", reason)
	}
}

func TestALongFailureIsCutToTheReasonThatTheServiceTakes(t *testing.T) {
	s := settles(acked, delayed, extended)
	long := errors.New(strings.Repeat("é\xff", 600))
	fail := func(context.Context, *Lease) ([]byte, error) { return nil, long }
	_, _ = connect(t, s).Queue("q").Lease(t.Context(), fail, Options{})
	if reason := requests[*headwaypb.DelayRequest](s)[0].Reason; reason != strings.Repeat("é?", 128) {
		t.Errorf("the reason is %q", reason)
	}
}

func TestALeaseIsKeptAliveAndItsLossEndsTheHandler(t *testing.T) {
	s := settles(acked, delayed, extended)
	s.extend = func(*headwaypb.ExtendRequest) (headwaypb.Settled, error) {
		if len(requests[*headwaypb.ExtendRequest](s)) < 3 {
			return extended, nil
		}
		return stale, nil
	}
	_, err := connect(t, s).Queue("q").Lease(t.Context(), func(ctx context.Context, lease *Lease) ([]byte, error) {
		<-ctx.Done()
		if !Is(context.Cause(ctx), isStale) || !lease.IsLost() {
			t.Errorf("ended because of %v", context.Cause(ctx))
		}
		return []byte("too late"), nil
	}, Options{Lease: 100 * time.Millisecond})
	for _, asked := range requests[*headwaypb.ExtendRequest](s) {
		if asked.Lease.AsDuration() != 100*time.Millisecond {
			t.Errorf("asked %v", asked)
		}
	}
	if !Is(err, isStale) || len(requests[*headwaypb.AckRequest](s)) != 0 {
		t.Errorf("failed with %v", err)
	}
}

func TestALeaseOfAForeignMessageIsExtendedByTheSpanThatWasAskedFor(t *testing.T) {
	s := settles(acked, delayed, extended)
	give := s.get
	s.get = func(ctx context.Context, request *headwaypb.GetRequest) (*headwaypb.GetResponse, error) {
		response, err := give(ctx, request)
		for _, delivery := range response.GetDeliveries() {
			delivery.PutAt, delivery.Waited = nil, nil
		}
		return response, err
	}
	asked := make(chan time.Time, 100)
	s.extend = func(*headwaypb.ExtendRequest) (headwaypb.Settled, error) {
		asked <- time.Now()
		return extended, nil
	}
	begun := time.Now()
	_, err := connect(t, s).Queue("q").Lease(t.Context(), func(context.Context, *Lease) ([]byte, error) {
		if first := (<-asked).Sub(begun); first < 300*time.Millisecond {
			t.Errorf("it was extended after %v", first)
		}
		return nil, nil
	}, Options{Lease: 900 * time.Millisecond})
	if err != nil {
		t.Error(err)
	}
}

// deaf is a service that does not answer the first Extend, with a lease of 1.5 s.
func deaf(t *testing.T) (s *service, asked chan time.Time) {
	s, asked = settles(acked, delayed, extended), make(chan time.Time, 100)
	give := s.get
	s.get = func(ctx context.Context, request *headwaypb.GetRequest) (*headwaypb.GetResponse, error) {
		response, err := give(ctx, request)
		if err == nil {
			response.Deliveries[0].LeaseExpiresAt = timestamppb.New(time.UnixMilli(1001_000 + 1500))
		}
		return response, err
	}
	s.extend = func(*headwaypb.ExtendRequest) (headwaypb.Settled, error) {
		if asked <- time.Now(); len(requests[*headwaypb.ExtendRequest](s)) == 1 {
			<-t.Context().Done()
		}
		return extended, nil
	}
	return s, asked
}

func TestAnExtendWithoutAnAnswerDoesNotCostTheLease(t *testing.T) {
	s, asked := deaf(t)
	_, err := connect(t, s).Queue("q").Lease(t.Context(), func(context.Context, *Lease) ([]byte, error) {
		first := <-asked
		if later := (<-asked).Sub(first); later > time.Second { // the first came after half a second
			t.Errorf("the second came %v later", later)
		}
		return nil, nil
	}, Options{})
	if err != nil {
		t.Error(err)
	}
}

func TestAnAckDoesNotWaitForAnExtendWithoutAnAnswer(t *testing.T) {
	s, asked := deaf(t)
	_, err := connect(t, s).Queue("q").Lease(t.Context(), func(ctx context.Context, lease *Lease) ([]byte, error) {
		ctx, cancel := context.WithDeadline(ctx, (<-asked).Add(5*time.Second))
		defer cancel()
		return nil, lease.Ack(ctx, nil)
	}, Options{})
	if err != nil {
		t.Error(err)
	}
}

func TestALeaseIsExtendedWhileItsAckIsBeingTried(t *testing.T) {
	s, extends := settles(acked, delayed, extended), make(chan struct{}, 100)
	s.extend = func(*headwaypb.ExtendRequest) (headwaypb.Settled, error) {
		extends <- struct{}{}
		return extended, nil
	}
	s.ack = func(*headwaypb.AckRequest) (headwaypb.Settled, error) {
		for range 3 { // more than were under way
			select {
			case <-extends:
			case <-t.Context().Done():
			}
		}
		return acked, nil
	}
	_, err := connect(t, s).Queue("q").Lease(t.Context(), nothing, Options{})
	if asked := requests[*headwaypb.AckRequest](s); err != nil || len(asked) != 1 {
		t.Error(err, asked)
	}
}

func TestAnExtendThatAnAckOvertakesDoesNotMakeTheLeaseLookLost(t *testing.T) {
	s, asked := settles(acked, delayed, extended), make(chan struct{}, 100)
	s.extend = func(*headwaypb.ExtendRequest) (headwaypb.Settled, error) {
		asked <- struct{}{}
		return headwaypb.Settled_SETTLED_GONE, nil
	}
	s.ack = func(*headwaypb.AckRequest) (headwaypb.Settled, error) {
		<-asked
		return acked, nil
	}
	var held *Lease
	_, err := connect(t, s).Queue("q").Lease(t.Context(), func(_ context.Context, lease *Lease) ([]byte, error) {
		held = lease
		return nil, nil
	}, Options{Lease: 600 * time.Millisecond})
	if err != nil || held.IsLost() {
		t.Error("failed with", err)
	}
}

func TestALeaseIsExtendedWhileTheAnswerToItsProgressDoesNotCome(t *testing.T) {
	s, kept := settles(acked, delayed, extended), make(chan struct{}, 100)
	s.extend = func(request *headwaypb.ExtendRequest) (headwaypb.Settled, error) {
		if request.Progress == nil {
			kept <- struct{}{}
			return extended, nil
		}
		for range 3 { // more than were under way
			<-kept
		}
		return extended, nil
	}
	_, err := connect(t, s).Queue("q").Lease(t.Context(), func(ctx context.Context, lease *Lease) ([]byte, error) {
		return nil, lease.Progress(ctx, 0.5, "half of it")
	}, Options{})
	if err != nil {
		t.Error(err)
	}
}

func TestAnAckThatComesTooLateIsAnError(t *testing.T) {
	s := settles(stale, delayed, extended)
	_, err := connect(t, s).Queue("q").Lease(t.Context(), nothing, Options{})
	if !Is(err, isStale) || len(requests[*headwaypb.DelayRequest](s)) != 0 {
		t.Errorf("failed with %v", err)
	}
}

func TestAnAckOfADeadMessageComesTooLate(t *testing.T) {
	s := settles(dead, delayed, extended)
	var held *Lease
	_, err := connect(t, s).Queue("q").Lease(t.Context(), func(_ context.Context, lease *Lease) ([]byte, error) {
		held = lease
		return nil, nil
	}, Options{})
	var failed *Error
	if !errors.As(err, &failed) || failed.Reason != isStale || failed.Code != codes.FailedPrecondition || !held.IsLost() {
		t.Fatalf("failed with %v", err)
	}
	if failed.Text != "too late: the message is dead" || len(requests[*headwaypb.DelayRequest](s)) != 0 {
		t.Errorf("failed with %q", failed.Text)
	}
}

func TestADelayMayLeaveItsMessageDead(t *testing.T) {
	s := settles(acked, dead, extended)
	_, err := connect(t, s).Queue("q").Lease(t.Context(), func(ctx context.Context, lease *Lease) ([]byte, error) {
		return nil, lease.Backoff(ctx, "for the last time")
	}, Options{})
	if err != nil {
		t.Errorf("failed with %v", err)
	}
}

func TestAResultThatIsRefusedIsTheHandlersFailure(t *testing.T) {
	s := settles(acked, delayed, extended)
	s.ack = func(*headwaypb.AckRequest) (headwaypb.Settled, error) {
		return 0, refusal(codes.InvalidArgument, "TOO_LARGE")
	}
	_, err := connect(t, s).Queue("q").Lease(t.Context(), nothing, Options{})
	if !Is(err, headwaypb.ErrorReason_ERROR_REASON_TOO_LARGE) || len(requests[*headwaypb.DelayRequest](s)) != 1 {
		t.Errorf("failed with %v", err)
	}
}

func TestADelayWhoseAnswerWasLostIsMadeAgain(t *testing.T) {
	s := settles(acked, delayed, extended)
	s.delay = func(*headwaypb.DelayRequest) (headwaypb.Settled, error) {
		if len(requests[*headwaypb.DelayRequest](s)) == 1 {
			return 0, errBroken
		}
		return delayed, nil
	}
	release := func(ctx context.Context, lease *Lease) ([]byte, error) { return nil, lease.Release(ctx) }
	_, err := connect(t, s).Queue("q").Lease(t.Context(), release, Options{})
	if err != nil || len(requests[*headwaypb.DelayRequest](s)) != 2 {
		t.Error(err)
	}
}

func TestALeaseWhoseAnswerIsLostIsAskedForByItsName(t *testing.T) {
	s := settles(acked, delayed, extended)
	give := s.get
	s.get = func(ctx context.Context, request *headwaypb.GetRequest) (*headwaypb.GetResponse, error) {
		if len(requests[*headwaypb.GetRequest](s)) == 1 {
			return nil, errBroken
		}
		return give(ctx, request)
	}
	found, err := connect(t, s).Queue("q").Lease(t.Context(), nothing, Options{})
	asked := requests[*headwaypb.GetRequest](s)
	if !found || err != nil || len(asked) != 2 || asked[0].AttemptId == "" || asked[0].AttemptId != asked[1].AttemptId {
		t.Errorf("found %v, %v, by %v", found, err, asked)
	}
}

func TestALeaseWhoseAnswerWasLostIsExtendedAtOnce(t *testing.T) {
	s, extends := settles(acked, delayed, extended), make(chan struct{}, 100)
	give := s.get
	s.get = func(ctx context.Context, request *headwaypb.GetRequest) (*headwaypb.GetResponse, error) {
		if len(requests[*headwaypb.GetRequest](s)) == 1 {
			return nil, errBroken
		}
		return give(ctx, request)
	}
	s.extend = func(*headwaypb.ExtendRequest) (headwaypb.Settled, error) {
		extends <- struct{}{}
		return extended, nil
	}
	_, err := connect(t, s).Queue("q").Lease(t.Context(), func(context.Context, *Lease) ([]byte, error) {
		select {
		case <-extends:
			return nil, nil
		case <-time.After(time.Minute):
			return nil, errHandler
		}
	}, Options{Lease: time.Hour}) // of which most may be over
	if err != nil {
		t.Error(err)
	}
}

func TestAnEmptyQueueIsNoError(t *testing.T) {
	s := &service{get: func(context.Context, *headwaypb.GetRequest) (*headwaypb.GetResponse, error) {
		return &headwaypb.GetResponse{}, nil
	}}
	if found, err := connect(t, s).Queue("q").Lease(t.Context(), nil, Options{}); found || err != nil {
		t.Error(found, err)
	}
}

func TestASpanOfALeaseThatIsNoneIsLeftForTheServiceToRefuse(t *testing.T) {
	s := settles(acked, delayed, extended)
	_, _ = connect(t, s).Queue("q").Lease(t.Context(), nothing, Options{Lease: -time.Second})
	if asked := requests[*headwaypb.GetRequest](s); len(asked) != 1 || asked[0].Lease.AsDuration() != -time.Second {
		t.Errorf("asked %v", asked)
	}
}

func TestALeaseThatIsRefusedWithoutAWaitIsNotAskedForAgain(t *testing.T) {
	s := &service{get: func(context.Context, *headwaypb.GetRequest) (*headwaypb.GetResponse, error) {
		return nil, refusal(codes.Unauthenticated, "UNAUTHENTICATED")
	}}
	_, err := connect(t, s).Queue("q").Lease(t.Context(), nothing, Options{})
	if asked := requests[*headwaypb.GetRequest](s); err == nil || len(asked) != 1 {
		t.Errorf("asked %v, ended with %v", asked, err)
	}
}

func TestALargeMessageIsLeased(t *testing.T) {
	s := settles(acked, delayed, extended)
	s.get = gives(&headwaypb.Message{Payload: make([]byte, 5<<20)})
	handle := func(_ context.Context, lease *Lease) ([]byte, error) { return lease.Message.Payload[:1], nil }
	if found, err := connect(t, s).Queue("q").Lease(t.Context(), handle, Options{}); !found || err != nil {
		t.Error(found, err)
	}
}
