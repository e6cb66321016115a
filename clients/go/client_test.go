package headway

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"headway.dev/go/headwaypb"
)

const (
	full     = headwaypb.ErrorReason_ERROR_REASON_QUEUE_FULL
	stopping = headwaypb.ErrorReason_ERROR_REASON_SHUTTING_DOWN
)

func puts(results ...*headwaypb.PutResult) *headwaypb.PutResponse {
	return &headwaypb.PutResponse{Results: results}
}

func asking(messages ...*headwaypb.Message) *headwaypb.PutRequest {
	return &headwaypb.PutRequest{Queue: "q", Messages: messages}
}

func canceled(err error) bool {
	var failed *Error
	return errors.As(err, &failed) && failed.Code == codes.Canceled
}

func TestAnErrorTellsAllThatTheServiceSaid(t *testing.T) {
	s := &service{put: func(context.Context, *headwaypb.PutRequest) (*headwaypb.PutResponse, error) {
		violation := &errdetails.BadRequest_FieldViolation{Field: "messages", Description: "is empty"}
		return nil, refusal(codes.ResourceExhausted, "QUEUE_FULL",
			&errdetails.RetryInfo{RetryDelay: durationpb.New(1500 * time.Millisecond)},
			&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{violation}})
	}}
	_, err := connect(t, s).Queues.Put(t.Context(), asking(&headwaypb.Message{}))
	var failed *Error
	if !errors.As(err, &failed) {
		t.Fatalf("%T is no *Error", err)
	}
	if failed.Code != codes.ResourceExhausted || failed.Reason != full || failed.ReasonName() != "QUEUE_FULL" || !Is(err, full) {
		t.Errorf("told %v, %v", failed.Code, failed.Reason)
	}
	if failed.Metadata["queue"] != "q" || failed.RetryAfter != 1500*time.Millisecond || failed.OutcomeUnknown() {
		t.Errorf("told %v, %v, %v", failed.Metadata, failed.RetryAfter, failed.OutcomeUnknown())
	}
	if len(failed.Violations) != 1 || failed.Violations[0].Field != "messages" {
		t.Errorf("told %v", failed.Violations)
	}
	if err.Error() != "headway: QUEUE_FULL: for people" {
		t.Errorf("reads %q", err)
	}
}

func TestOutcomesAreUnknownWithoutAReasonAndWhenTheServiceSaysSo(t *testing.T) {
	for err, unknown := range map[error]bool{
		errBroken:   true,
		errStopping: false,
		refusal(codes.Unavailable, "OUTCOME_UNKNOWN"):  true,
		status.Error(codes.DeadlineExceeded, ""):       true,
		status.Error(codes.ResourceExhausted, "large"): false,
	} {
		if told := Typed(err).(*Error).OutcomeUnknown(); told != unknown {
			t.Errorf("%v: %v", err, told)
		}
	}
}

func TestACancelledCallIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := &service{put: func(ctx context.Context, _ *headwaypb.PutRequest) (*headwaypb.PutResponse, error) {
		cancel()
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	if _, err := connect(t, s).Queues.Put(ctx, asking(&headwaypb.Message{})); !canceled(err) {
		t.Errorf("failed with %v", err)
	}
}

func TestWhatOnlyTheServiceCancelledIsMadeAgain(t *testing.T) {
	s := &service{}
	s.put = func(context.Context, *headwaypb.PutRequest) (*headwaypb.PutResponse, error) {
		if len(requests[*headwaypb.PutRequest](s)) == 1 {
			return nil, status.Error(codes.Canceled, "") // as gRPC ends what a process that goes down has not begun
		}
		return puts(&headwaypb.PutResult{}), nil
	}
	if _, err := connect(t, s).Queues.Put(t.Context(), asking(&headwaypb.Message{Id: "a"})); err != nil {
		t.Errorf("failed with %v", err)
	}
}

func TestACallOnAClosedClientFailsAtOnce(t *testing.T) {
	client := connect(t, &service{})
	_ = client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := client.Queues.Put(ctx, asking(&headwaypb.Message{Id: "a"})); !canceled(err) || ctx.Err() != nil {
		t.Errorf("failed with %v", err)
	}
}

func TestATokenIsAskedForEachCallAndNotSentInPlainText(t *testing.T) {
	tokens := []string{"two", "one\n"}
	token := Token(func(context.Context) (string, error) {
		last := len(tokens) - 1
		defer func() { tokens = tokens[:last] }()
		return tokens[last], nil
	})
	for _, wanted := range []string{"Bearer one", "Bearer two"} {
		if told, err := token.GetRequestMetadata(t.Context()); err != nil || told["authorization"] != wanted {
			t.Errorf("told %v, %v", told, err)
		}
	}
	if _, err := Connect(Config{Dial: []grpc.DialOption{grpc.WithPerRPCCredentials(token)}}); err == nil {
		t.Error("a token may go in plain text")
	}
}

func TestACallOfTheStubGetsADeadlineBeyondItsWait(t *testing.T) {
	var left time.Duration
	s := &service{put: func(ctx context.Context, _ *headwaypb.PutRequest) (*headwaypb.PutResponse, error) {
		deadline, _ := ctx.Deadline()
		left = time.Until(deadline)
		return puts(), nil
	}}
	client := connect(t, s)
	if _, err := client.Queues.Put(t.Context(), &headwaypb.PutRequest{Wait: durationpb.New(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if left < time.Hour || left > time.Hour+10*time.Second {
		t.Errorf("has %v", left)
	}
}

func TestAPutWithIdsWhoseAnswerIsLostIsMadeAgainAndKeepsWhatIsThere(t *testing.T) {
	calls := 0
	s := &service{put: func(context.Context, *headwaypb.PutRequest) (*headwaypb.PutResponse, error) {
		if calls++; calls == 1 {
			return nil, errBroken
		}
		mine := &headwaypb.PutResult{Id: "mine", Ticket: 1, Deduplicated: true}
		return puts(mine, &headwaypb.PutResult{Id: "theirs", Ticket: 2, Deduplicated: true, BodyDiffers: true}), nil
	}}
	put := asking(&headwaypb.Message{Id: "mine"}, &headwaypb.Message{Id: "theirs"})
	response, err := connect(t, s).Queues.Put(t.Context(), put)
	if err != nil {
		t.Fatal(err)
	}
	asked := requests[*headwaypb.PutRequest](s)
	if len(asked) != 2 || asked[0].OnDuplicate != 0 || asked[1].OnDuplicate != headwaypb.OnDuplicate_ON_DUPLICATE_KEEP {
		t.Errorf("asked %v", asked)
	}
	if put.OnDuplicate != 0 {
		t.Error("the caller's request was changed")
	}
	if results := response.Results; results[0].Ticket != 1 || !results[1].BodyDiffers {
		t.Errorf("answered %v", results)
	}
}

func TestAPutStaysAsItIsUntilATryMayHaveDoneIt(t *testing.T) {
	failures := []error{errStopping, errBroken, errStopping}
	s := &service{}
	s.put = func(context.Context, *headwaypb.PutRequest) (*headwaypb.PutResponse, error) {
		if calls := len(requests[*headwaypb.PutRequest](s)); calls <= len(failures) {
			return nil, failures[calls-1]
		}
		return puts(&headwaypb.PutResult{}), nil
	}
	if _, err := connect(t, s).Queues.Put(t.Context(), asking(&headwaypb.Message{Id: "a"})); err != nil {
		t.Fatal(err)
	}
	told := []headwaypb.OnDuplicate{}
	for _, request := range requests[*headwaypb.PutRequest](s) {
		told = append(told, request.OnDuplicate)
	}
	kept := headwaypb.OnDuplicate_ON_DUPLICATE_KEEP
	if !slices.Equal(told, []headwaypb.OnDuplicate{0, 0, kept, kept}) {
		t.Errorf("asked %v", told)
	}
}

func TestOnlyWhatCarriesIdsOrReadsIsMadeAgain(t *testing.T) {
	for _, request := range []*headwaypb.PutRequest{asking(&headwaypb.Message{}), asking(&headwaypb.Message{Id: "a"})} {
		s := &service{}
		s.put = func(context.Context, *headwaypb.PutRequest) (*headwaypb.PutResponse, error) {
			if len(requests[*headwaypb.PutRequest](s)) == 1 {
				return nil, errStopping
			}
			return puts(&headwaypb.PutResult{}), nil
		}
		_, err := connect(t, s).Queues.Put(t.Context(), request)
		if again := request.Messages[0].Id != ""; Is(err, stopping) == again {
			t.Errorf("%v: %v", request, err)
		}
	}
	client := connect(t, &service{})
	for method, again := range map[string]bool{"Describe": true, "Extend": true, "Get": false, "Close": false, "Purge": false} {
		tries := 0
		invoke := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
			if tries++; tries == 1 {
				return errStopping
			}
			return nil
		}
		_ = client.unary(t.Context(), "/headway.v1.QueueService/"+method, &headwaypb.GetRequest{}, nil, nil, invoke)
		if again != (tries == 2) {
			t.Errorf("%s: %d tries", method, tries)
		}
	}
}

func TestATryWithoutAnAnswerLeavesTimeForAnother(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Hour} { // beyond which it has so long
		s, left := &service{}, time.Duration(0)
		s.get = func(ctx context.Context, _ *headwaypb.GetRequest) (*headwaypb.GetResponse, error) {
			deadline, _ := ctx.Deadline()
			left = time.Until(deadline)
			return &headwaypb.GetResponse{}, nil
		}
		asked := &headwaypb.GetRequest{AttemptId: "a", Wait: durationpb.New(wait)}
		if _, err := connect(t, s).Queues.Get(t.Context(), asked); err != nil || left > wait+5*time.Second {
			t.Errorf("waiting %v: %v was left, %v", wait, left, err)
		}
	}
}

func TestWorkThatIsDoneIsAckedByWhomeverAnswers(t *testing.T) {
	silent, other := settles(acked, delayed, extended), settles(acked, delayed, extended)
	silent.ack = func(*headwaypb.AckRequest) (headwaypb.Settled, error) {
		<-t.Context().Done()
		return acked, nil
	}
	client, err := Connect(Config{Addresses: []string{serve(t, silent), serve(t, other)}, CallTimeout: 4 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, s := range []*service{silent, other} { // until both are connected
		for len(requests[*headwaypb.DescribeRequest](s)) == 0 {
			if _, err := client.Queues.Describe(t.Context(), &headwaypb.DescribeRequest{Queue: "q"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for len(requests[*headwaypb.AckRequest](silent)) == 0 {
		ack := &headwaypb.AckRequest{Queue: "q", Leases: []string{"token"}}
		if _, err := client.Queues.Ack(t.Context(), ack); err != nil {
			t.Error(err)
		}
	}
}

func TestWhatMayHaveHappenedIsToldWhateverTheLastTrySays(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	s := &service{}
	s.put = func(context.Context, *headwaypb.PutRequest) (*headwaypb.PutResponse, error) {
		if len(requests[*headwaypb.PutRequest](s)) == 1 {
			return nil, errBroken
		}
		wait := &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Hour)}
		return nil, refusal(codes.Unavailable, "SHUTTING_DOWN", wait)
	}
	_, err := connect(t, s).Queues.Put(ctx, asking(&headwaypb.Message{Id: "a"}))
	var failed *Error
	if !errors.As(err, &failed) || !failed.OutcomeUnknown() {
		t.Errorf("failed with %v", err)
	}
}

func TestARepeatThatIsRefusedUnseenLeavesTheDoubt(t *testing.T) {
	for _, refused := range []struct {
		code      codes.Code
		reason    string
		isDoubted bool
	}{
		{codes.ResourceExhausted, "OVERLOADED", true},
		{codes.ResourceExhausted, "QUEUE_FULL", true},
		{codes.Unauthenticated, "UNAUTHENTICATED", true},
		{codes.PermissionDenied, "PERMISSION_DENIED", true},
		{codes.Internal, "INTERNAL", true},
		{codes.FailedPrecondition, "QUEUE_CLOSED", true},
		{codes.FailedPrecondition, "ROLE_IN_USE", true},
		{codes.NotFound, "QUEUE_NOT_FOUND", false},
		{codes.AlreadyExists, "DUPLICATE_MESSAGE", false},
		{codes.InvalidArgument, "FIELD_INVALID", false},
	} {
		s := &service{}
		s.put = func(context.Context, *headwaypb.PutRequest) (*headwaypb.PutResponse, error) {
			if len(requests[*headwaypb.PutRequest](s)) == 1 {
				return nil, errBroken
			}
			return nil, refusal(refused.code, refused.reason)
		}
		_, err := connect(t, s).Queues.Put(t.Context(), asking(&headwaypb.Message{Id: "a"}))
		if failed := err.(*Error); failed.OutcomeUnknown() != refused.isDoubted {
			t.Errorf("%s: failed with %v", refused.reason, failed)
		}
	}
}

func TestARepeatedGetThatFindsTheQueueDrainedSaysSo(t *testing.T) {
	s := &service{}
	s.get = func(context.Context, *headwaypb.GetRequest) (*headwaypb.GetResponse, error) {
		if len(requests[*headwaypb.GetRequest](s)) == 1 {
			return nil, errBroken
		}
		return nil, refusal(codes.FailedPrecondition, "QUEUE_DRAINED")
	}
	_, err := connect(t, s).Queues.Get(t.Context(), &headwaypb.GetRequest{AttemptId: "a"})
	if !Is(err, headwaypb.ErrorReason_ERROR_REASON_QUEUE_DRAINED) {
		t.Errorf("failed with %v", err)
	}
}

func TestSeveralAddressesAreCalledInTurn(t *testing.T) {
	one, other := &service{}, &service{}
	client, err := Connect(Config{Addresses: []string{serve(t, one), serve(t, other)}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for len(requests[*headwaypb.DescribeRequest](one)) == 0 || len(requests[*headwaypb.DescribeRequest](other)) == 0 {
		if _, err := client.Queues.Describe(t.Context(), &headwaypb.DescribeRequest{Queue: "q"}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTheEnvironmentNamesTheAddressIfNobodyElseDoes(t *testing.T) {
	s := &service{}
	address := serve(t, s)
	for environment, addresses := range map[string][]string{
		address:                  nil,
		" " + address:            nil,
		address + ", " + address: nil,
		address + ",":            nil,
		" ":                      {address + " "},
		"nowhere.invalid:1":      {address},
	} {
		t.Setenv("HEADWAY_ADDRESS", environment)
		client, err := Connect(Config{Addresses: addresses})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if _, err := client.Queues.Describe(t.Context(), &headwaypb.DescribeRequest{Queue: "q"}); err != nil {
			t.Error(environment, err)
		}
	}
}

func TestEveryCallThatIsMadeAgainIsOneOfTheService(t *testing.T) {
	services := headwaypb.File_headway_v1_queue_service_proto.Services().Get(0).Methods()
	admin := headwaypb.File_headway_v1_admin_service_proto.Services().Get(0).Methods()
	for _, method := range strings.Fields(repeatable) {
		name := protoreflect.Name(method)
		if services.ByName(name) == nil && admin.ByName(name) == nil {
			t.Error(method)
		}
	}
}
