package headway

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"headway.dev/go/headwaypb"
)

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
