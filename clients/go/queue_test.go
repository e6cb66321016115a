package headway

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"headway.dev/go/headwaypb"
)

const (
	acked    = headwaypb.Settled_SETTLED_ACKED
	dead     = headwaypb.Settled_SETTLED_DEAD
	delayed  = headwaypb.Settled_SETTLED_DELAYED
	extended = headwaypb.Settled_SETTLED_EXTENDED
	stale    = headwaypb.Settled_SETTLED_STALE
	isStale  = headwaypb.ErrorReason_ERROR_REASON_LEASE_STALE
)

var errHandler = errors.New("no paper")

func nothing(context.Context, *Lease) ([]byte, error) { return nil, nil }

func fails(context.Context, *Lease) ([]byte, error) { return nil, errHandler }

// settles is a service with one message, which answers every settling so.
func settles(ack, delay, extend headwaypb.Settled) *service {
	return &service{
		get:    gives(&headwaypb.Message{Id: "job", Payload: []byte("print")}),
		ack:    func(*headwaypb.AckRequest) (headwaypb.Settled, error) { return ack, nil },
		delay:  func(*headwaypb.DelayRequest) (headwaypb.Settled, error) { return delay, nil },
		extend: func(*headwaypb.ExtendRequest) (headwaypb.Settled, error) { return extend, nil },
	}
}

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

func TestWorkGoesOnAfterFailuresAndEndsWhenTheQueueIsDrained(t *testing.T) {
	s := settles(acked, delayed, extended)
	give := s.get
	s.get = func(ctx context.Context, request *headwaypb.GetRequest) (*headwaypb.GetResponse, error) {
		if len(requests[*headwaypb.GetRequest](s)) == 1 {
			return nil, refusal(codes.FailedPrecondition, "ROLE_IN_USE")
		}
		return give(ctx, request)
	}
	err := connect(t, s).Queue("q").Work(t.Context(), fails, Options{})
	if err != nil || len(requests[*headwaypb.DelayRequest](s)) != 1 {
		t.Error("ended with", err)
	}
}

func TestWorkKeepsTheNameOfAGetUntilOneIsAnswered(t *testing.T) {
	s, extends := settles(acked, delayed, extended), make(chan struct{}, 100)
	give := s.get
	s.get = func(ctx context.Context, request *headwaypb.GetRequest) (*headwaypb.GetResponse, error) {
		if len(requests[*headwaypb.GetRequest](s)) == 1 {
			return nil, status.Error(codes.Internal, "lost, and not asked for again by the call itself")
		}
		return give(ctx, request)
	}
	s.extend = func(*headwaypb.ExtendRequest) (headwaypb.Settled, error) {
		extends <- struct{}{}
		return extended, nil
	}
	handle := func(ctx context.Context, _ *Lease) ([]byte, error) {
		select {
		case <-extends: // it may be old
			return nil, nil
		case <-time.After(time.Minute):
			return nil, errHandler
		}
	}
	if err := connect(t, s).Queue("q").Work(t.Context(), handle, Options{Lease: time.Hour}); err != nil {
		t.Error("ended with", err)
	}
	asked := requests[*headwaypb.GetRequest](s)
	if len(asked) != 3 || asked[0].AttemptId != asked[1].AttemptId || asked[1].AttemptId == asked[2].AttemptId {
		t.Errorf("asked %v", asked)
	}
	if len(requests[*headwaypb.AckRequest](s)) != 1 {
		t.Error("it was not extended at once")
	}
}

func TestWorkThatIsStoppedBehindAGetThatFailedGivesBackWhatThatMayHaveLeased(t *testing.T) {
	s := settles(acked, delayed, extended)
	stop, cancel := context.WithCancel(t.Context())
	give := s.get
	s.get = func(ctx context.Context, request *headwaypb.GetRequest) (*headwaypb.GetResponse, error) {
		if len(requests[*headwaypb.GetRequest](s)) == 1 {
			time.AfterFunc(time.Second, cancel) // it pauses by then, for longer
			late := &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Minute)}
			return nil, refusal(codes.FailedPrecondition, "QUEUE_PAUSED", late)
		}
		return give(ctx, request)
	}
	if err := connect(t, s).Queue("q").Work(t.Context(), fails, Options{Stop: stop}); err != nil {
		t.Error("ended with", err)
	}
	asked := requests[*headwaypb.GetRequest](s)
	if len(asked) != 2 || asked[0].AttemptId != asked[1].AttemptId || asked[1].Wait != nil {
		t.Errorf("asked %v", asked)
	}
	if given := requests[*headwaypb.DelayRequest](s); len(given) != 1 || !given[0].KeepAttempt {
		t.Errorf("gave back %v", given)
	}
}

func TestWorkEndsWithWhatNoWaitingMends(t *testing.T) {
	tooLarge := status.Error(codes.ResourceExhausted, "an answer larger than this client takes")
	for _, lasting := range []error{refusal(codes.NotFound, "QUEUE_NOT_FOUND"), tooLarge} {
		s := &service{get: func(context.Context, *headwaypb.GetRequest) (*headwaypb.GetResponse, error) {
			return nil, lasting
		}}
		err := connect(t, s).Queue("q").Work(t.Context(), nil, Options{Concurrency: 3})
		if err == nil || err.Error() != Typed(lasting).Error() {
			t.Error("ended with", err)
		}
	}
}

func TestWorkGoesOnWhereTheServiceIsBusy(t *testing.T) {
	s := settles(acked, delayed, extended)
	give := s.get
	s.get = func(ctx context.Context, request *headwaypb.GetRequest) (*headwaypb.GetResponse, error) {
		if len(requests[*headwaypb.GetRequest](s)) == 1 {
			soon := &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Millisecond)}
			return nil, refusal(codes.ResourceExhausted, "OVERLOADED", soon)
		}
		return give(ctx, request)
	}
	err := connect(t, s).Queue("q").Work(t.Context(), nothing, Options{})
	if err != nil || len(requests[*headwaypb.AckRequest](s)) != 1 {
		t.Error("ended with", err)
	}
}

func TestWorkGoesOnWithTheTokenOfNowAndEndsWhenThatIsRefused(t *testing.T) {
	for _, code := range []codes.Code{codes.Unauthenticated, codes.PermissionDenied} {
		s := settles(acked, delayed, extended)
		give := s.get
		s.get = func(ctx context.Context, request *headwaypb.GetRequest) (*headwaypb.GetResponse, error) {
			if len(requests[*headwaypb.GetRequest](s)) == 2 {
				return give(ctx, request)
			}
			return nil, refusal(code, code.String())
		}
		var failed *Error
		err := connect(t, s).Queue("q").Work(t.Context(), nothing, Options{})
		if !errors.As(err, &failed) || failed.Code != code || len(requests[*headwaypb.AckRequest](s)) != 1 {
			t.Error("ended with", err)
		}
		names := []string{}
		for _, request := range requests[*headwaypb.GetRequest](s) {
			names = append(names, request.AttemptId)
		}
		if len(names) != 4 || names[0] != names[1] || names[1] == names[2] || names[2] != names[3] {
			t.Errorf("asked %v", names)
		}
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

// holding is a queue of one message that nobody closes.
func holding() *service {
	s := settles(acked, delayed, extended)
	give := s.get
	s.get = func(ctx context.Context, request *headwaypb.GetRequest) (*headwaypb.GetResponse, error) {
		response, err := give(ctx, request)
		if err != nil && request.Wait.AsDuration() > 0 {
			<-ctx.Done()
		}
		return response, err
	}
	return s
}

func TestWorkThatIsStoppedFinishesWhatItHolds(t *testing.T) {
	s := holding()
	ends, stop := context.WithCancel(t.Context())
	handle := func(ctx context.Context, _ *Lease) ([]byte, error) {
		stop()
		return nil, ctx.Err()
	}
	if err := connect(t, s).Queue("q").Work(t.Context(), handle, Options{Concurrency: 2, Stop: ends}); err != nil {
		t.Error("ended with", err)
	}
	if len(requests[*headwaypb.AckRequest](s)) != 1 {
		t.Error("it was not acked")
	}
}

func TestWorkThatIsCutOffGivesBackWhatItHolds(t *testing.T) {
	s := holding()
	ctx, cancel := context.WithCancel(t.Context())
	handle := func(ctx context.Context, _ *Lease) ([]byte, error) {
		cancel()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if err := connect(t, s).Queue("q").Work(ctx, handle, Options{Concurrency: 2}); !errors.Is(err, context.Canceled) {
		t.Error("ended with", err)
	}
	if asked := requests[*headwaypb.DelayRequest](s); len(asked) != 1 || !asked[0].KeepAttempt {
		t.Errorf("asked %v", asked)
	}
}

func TestWorkThatIsCutOffDoesNotTryAnAckForAsLongAsTheLeaseMayLive(t *testing.T) {
	s := holding()
	s.ack = func(*headwaypb.AckRequest) (headwaypb.Settled, error) { return 0, errBroken }
	client, err := Connect(Config{Addresses: []string{serve(t, s)}, CallTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	handle := func(context.Context, *Lease) ([]byte, error) {
		cancel()
		return nil, nil
	}
	ended := make(chan error, 1)
	go func() { ended <- client.Queue("q").Work(ctx, handle, Options{Lease: time.Hour}) }()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) || len(requests[*headwaypb.AckRequest](s)) == 0 {
			t.Error("ended with", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it still tries")
	}
}

func TestWhatAGetThatWasCancelledLeasedGoesBackForFree(t *testing.T) {
	for _, isWorker := range []bool{true, false} {
		s := settles(acked, delayed, extended)
		ctx, cancel := context.WithCancel(t.Context())
		give := s.get
		s.get = func(asking context.Context, request *headwaypb.GetRequest) (*headwaypb.GetResponse, error) {
			if len(requests[*headwaypb.GetRequest](s)) == 1 {
				cancel() // the moment in which it is answered
				<-asking.Done()
				return nil, asking.Err()
			}
			return give(asking, request)
		}
		handle := func(context.Context, *Lease) ([]byte, error) {
			t.Error("it was handled")
			return nil, nil
		}
		queue := connect(t, s).Queue("q")
		if isWorker {
			if err := queue.Work(t.Context(), handle, Options{Stop: ctx}); err != nil {
				t.Error("ended with", err)
			}
		} else if _, err := queue.Lease(ctx, handle, Options{Wait: time.Hour}); !canceled(err) {
			t.Error("failed with", err)
		}
		asked, back := requests[*headwaypb.GetRequest](s), requests[*headwaypb.DelayRequest](s)
		if len(asked) != 2 || asked[0].AttemptId != asked[1].AttemptId || asked[1].Wait.AsDuration() != 0 {
			t.Errorf("asked %v", asked)
		}
		if len(back) != 1 || back[0].GetDelay() == nil || !back[0].KeepAttempt || back[0].Leases[0] != "token" {
			t.Errorf("gave back %v", back)
		}
	}
}
