package headway

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"headway.dev/go/headwaypb"
)

type watchStream = grpc.ServerStreamingServer[headwaypb.WatchPositionResponse]

func at(second int64) *timestamppb.Timestamp { return timestamppb.New(time.Unix(second, 0)) }

func place(second int64, id string, position uint64) *headwaypb.WatchPositionResponse {
	subject := &headwaypb.Position_Id{Id: id}
	told := &headwaypb.Position{Subject: subject, Position: position, State: headwaypb.State_STATE_WAITING}
	return &headwaypb.WatchPositionResponse{AsOf: at(second), Event: &headwaypb.WatchPositionResponse_Position{Position: told}}
}

func end(second int64, id string) *headwaypb.WatchPositionResponse {
	told := &headwaypb.Finished{Id: id, Outcome: headwaypb.Outcome_OUTCOME_DONE}
	return &headwaypb.WatchPositionResponse{AsOf: at(second), Event: &headwaypb.WatchPositionResponse_Finished{Finished: told}}
}

// tells is a service that says these things on the first one, the second one and so on, and then fails so.
func tells(failure error, streams ...[]*headwaypb.WatchPositionResponse) *service {
	s := &service{}
	s.watch = func(_ *headwaypb.WatchPositionRequest, stream watchStream) error {
		for _, answer := range streams[len(requests[*headwaypb.WatchPositionRequest](s))-1] {
			if err := stream.Send(answer); err != nil {
				return err
			}
		}
		return failure
	}
	return s
}

func TestAWatchGoesOnWhenItsStreamBreaksAndNeverBackInTime(t *testing.T) {
	s := tells(errBroken,
		[]*headwaypb.WatchPositionResponse{place(10, "a", 3), place(10, "b", 4), end(11, "b")},
		[]*headwaypb.WatchPositionResponse{place(9, "a", 9), place(12, "b", 1), place(12, "a", 5), place(13, "a", 1), end(14, "a")},
	)
	seen := []uint64{}
	for answer, err := range connect(t, s).Queue("q").Watch(t.Context(), []string{"b", "a"}, Options{Attended: true}) {
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, answer.GetPosition().GetPosition())
	}
	if !slices.Equal(seen, []uint64{3, 4, 0, 5, 1, 0}) {
		t.Errorf("saw %v", seen)
	}
	asked := requests[*headwaypb.WatchPositionRequest](s)
	if len(asked) != 2 || !slices.Equal(asked[1].GetMessages().Ids, []string{"a"}) || !asked[1].GetMessages().Attended {
		t.Errorf("asked %v", asked)
	}
}

func TestAWatchTellsOnWhenTheClockOfTheStoreWentBack(t *testing.T) {
	s := tells(errBroken,
		[]*headwaypb.WatchPositionResponse{place(1000, "a", 3), place(400, "a", 2), place(401, "a", 1)},
		[]*headwaypb.WatchPositionResponse{place(100, "a", 1), end(101, "a")},
	)
	seen := []uint64{}
	for answer, err := range connect(t, s).Queue("q").Watch(t.Context(), []string{"a"}, Options{}) {
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, answer.GetPosition().GetPosition())
	}
	if !slices.Equal(seen, []uint64{3, 2, 1, 1, 0}) {
		t.Errorf("saw %v", seen)
	}
}

func TestAWatchEndsWithWhatNoWaitingMends(t *testing.T) {
	s := tells(refusal(codes.NotFound, "QUEUE_NOT_FOUND"), []*headwaypb.WatchPositionResponse{place(10, "a", 1)})
	var failure error
	for _, failure = range connect(t, s).Queue("q").Watch(t.Context(), []string{"a"}, Options{}) {
	}
	if !Is(failure, headwaypb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND) {
		t.Errorf("ended with %v", failure)
	}
}

func TestAWatchThatWasServedGoesOnWithTheTokenOfNowAndEndsWhenThatIsRefused(t *testing.T) {
	for _, code := range []codes.Code{codes.Unauthenticated, codes.PermissionDenied} {
		s := tells(refusal(code, code.String()),
			[]*headwaypb.WatchPositionResponse{place(10, "a", 3)},
			[]*headwaypb.WatchPositionResponse{place(11, "a", 2)},
			nil,
		)
		seen := []uint64{}
		var failed *Error
		for answer, err := range connect(t, s).Queue("q").Watch(t.Context(), []string{"a"}, Options{}) {
			if !errors.As(err, &failed) {
				seen = append(seen, answer.GetPosition().GetPosition())
			}
		}
		if !slices.Equal(seen, []uint64{3, 2}) || failed == nil || failed.Code != code {
			t.Errorf("saw %v, ended with %v", seen, failed)
		}
		if asked := requests[*headwaypb.WatchPositionRequest](s); len(asked) != 3 {
			t.Errorf("asked %v", asked)
		}
	}
}

func TestAWatchWhoseStreamEndsEarlyGoesOn(t *testing.T) {
	s := tells(nil,
		[]*headwaypb.WatchPositionResponse{place(10, "a", 3)},
		[]*headwaypb.WatchPositionResponse{end(14, "a")},
	)
	answers := 0
	for _, err := range connect(t, s).Queue("q").Watch(t.Context(), []string{"a"}, Options{}) {
		if answers++; err != nil {
			t.Fatal(err)
		}
	}
	if answers != 2 {
		t.Errorf("said %d times", answers)
	}
}

func TestAWatchWhoseStreamSaysNothingAsksAnew(t *testing.T) {
	s := &service{}
	s.watch = func(_ *headwaypb.WatchPositionRequest, stream watchStream) error {
		if len(requests[*headwaypb.WatchPositionRequest](s)) == 1 {
			<-stream.Context().Done()
			return stream.Context().Err()
		}
		return stream.Send(end(14, "a"))
	}
	client, err := Connect(Config{Addresses: []string{serve(t, s)}, CallTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, err := range client.Queue("q").Watch(ctx, []string{"a"}, Options{}) {
		if err != nil {
			t.Error(err)
		}
	}
}

func TestAWatchEndsWithItsContextAndWithItsLoop(t *testing.T) {
	s := &service{}
	ended := make(chan struct{}, 2)
	s.watch = func(_ *headwaypb.WatchPositionRequest, stream watchStream) error {
		defer func() { ended <- struct{}{} }()
		if err := stream.Send(place(1, "a", 1)); err != nil {
			return err
		}
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	queue := connect(t, s).Queue("q")
	for range queue.Watch(t.Context(), []string{"a"}, Options{}) {
		break
	}
	<-ended
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var failure error
	for _, failure = range queue.Watch(ctx, []string{"a"}, Options{}) {
		cancel()
	}
	<-ended
	var failed *Error
	if !errors.As(failure, &failed) || failed.Code != codes.Canceled {
		t.Errorf("ended with %v", failure)
	}
}
