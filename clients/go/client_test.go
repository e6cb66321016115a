package headway

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"

	"headway.dev/go/headwaypb"
)

const (
	full      = headwaypb.ErrorReason_ERROR_REASON_QUEUE_FULL
	duplicate = headwaypb.ErrorReason_ERROR_REASON_DUPLICATE_MESSAGE
	stopping  = headwaypb.ErrorReason_ERROR_REASON_SHUTTING_DOWN
)

func puts(results ...*headwaypb.PutResult) *headwaypb.PutResponse {
	return &headwaypb.PutResponse{Results: results}
}

func TestAnErrorTellsAllThatTheServiceSaid(t *testing.T) {
	s := &service{put: func(context.Context, *headwaypb.PutRequest) (*headwaypb.PutResponse, error) {
		violation := &errdetails.BadRequest_FieldViolation{Field: "messages", Description: "is empty"}
		return nil, refusal(codes.ResourceExhausted, "QUEUE_FULL",
			&errdetails.RetryInfo{RetryDelay: durationpb.New(1500 * time.Millisecond)},
			&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{violation}})
	}}
	_, err := connect(t, s).Queue("q").Put(t.Context(), &headwaypb.Message{})
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
	if told := status.Convert(err); told.Code() != codes.ResourceExhausted || len(told.Details()) != 3 {
		t.Errorf("as a status it is %v", told)
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
		if told := typed(err).(*Error).OutcomeUnknown(); told != unknown {
			t.Errorf("%v: %v", err, told)
		}
	}
}

func TestACancelledCallIsContextCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := &service{put: func(ctx context.Context, _ *headwaypb.PutRequest) (*headwaypb.PutResponse, error) {
		cancel()
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	if _, err := connect(t, s).Queue("q").Put(ctx, &headwaypb.Message{}); !errors.Is(err, context.Canceled) {
		t.Errorf("failed with %v", err)
	}
}

func TestACallOfTheStubGetsADeadlineBeyondItsWait(t *testing.T) {
	var left time.Duration
	s := &service{put: func(ctx context.Context, _ *headwaypb.PutRequest) (*headwaypb.PutResponse, error) {
		deadline, _ := ctx.Deadline()
		left = time.Until(deadline)
		return puts(), nil
	}}
	client := connect(t, s, WithCallTimeout(time.Hour))
	if _, err := client.Queues.Put(t.Context(), &headwaypb.PutRequest{Wait: durationpb.New(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if left < 110*time.Minute || left > 2*time.Hour {
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
	results, err := connect(t, s).Queue("q").PutAll(t.Context(), []*headwaypb.Message{{Id: "mine"}, {Id: "theirs"}})
	if err != nil {
		t.Fatal(err)
	}
	asked := requests[*headwaypb.PutRequest](s)
	if len(asked) != 2 || asked[0].OnDuplicate != 0 || asked[1].OnDuplicate != headwaypb.OnDuplicate_ON_DUPLICATE_KEEP {
		t.Errorf("asked %v", asked)
	}
	if results[0].Ticket != 1 || results[0].Error != nil || !Is(ErrorOf(results[1].Error), duplicate) {
		t.Errorf("answered %v", results)
	}
}

func TestAPutWithoutIdsIsMadeAgainOnlyIfNothingHappened(t *testing.T) {
	for _, failure := range []error{errBroken, errStopping} {
		calls := 0
		s := &service{put: func(context.Context, *headwaypb.PutRequest) (*headwaypb.PutResponse, error) {
			if calls++; calls == 1 {
				return nil, failure
			}
			return puts(&headwaypb.PutResult{Id: "~1"}), nil
		}}
		_, err := connect(t, s).Queue("q").Put(t.Context(), &headwaypb.Message{})
		if again := failure == errStopping; (err == nil) != again || (calls == 2) != again {
			t.Errorf("%v: %d calls, %v", failure, calls, err)
		}
	}
}

func TestACallThatIsToBeMadeAgainTooLateFailsAtOnce(t *testing.T) {
	s := &service{put: func(context.Context, *headwaypb.PutRequest) (*headwaypb.PutResponse, error) {
		return nil, refusal(codes.Unavailable, "SHUTTING_DOWN", &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Hour)})
	}}
	_, err := connect(t, s).Queue("q").Put(t.Context(), &headwaypb.Message{Id: "a"})
	if !Is(err, stopping) || len(requests[*headwaypb.PutRequest](s)) != 1 {
		t.Errorf("failed with %v", err)
	}
}

func TestSeveralAddressesAreCalledInTurn(t *testing.T) {
	one, other := &service{}, &service{}
	client := connect(t, one, WithAddress(serve(t, one), serve(t, other)))
	for len(requests[*headwaypb.DescribeRequest](one)) == 0 || len(requests[*headwaypb.DescribeRequest](other)) == 0 {
		if _, err := client.Queues.Describe(t.Context(), &headwaypb.DescribeRequest{Queue: "q"}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTheEnvironmentNamesTheAddressIfNobodyElseDoes(t *testing.T) {
	s := &service{}
	address := serve(t, s)
	for environment, options := range map[string][]ConnectOption{
		address:                  nil,
		address + ", " + address: nil,
		"nowhere.invalid:1":      {WithAddress(address)},
	} {
		t.Setenv("HEADWAY_ADDRESS", environment)
		client, err := Connect(options...)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if _, err := client.Queues.Describe(t.Context(), &headwaypb.DescribeRequest{Queue: "q"}); err != nil {
			t.Error(environment, err)
		}
	}
}

func TestGRPCRepeatsOnlyCallsThatDoNoHarm(t *testing.T) {
	config := struct {
		MethodConfig []struct {
			Name        []struct{ Service, Method string }
			RetryPolicy struct{ RetryableStatusCodes []string }
		}
	}{}
	if err := json.Unmarshal([]byte(serviceConfig), &config); err != nil {
		t.Fatal(err)
	}
	harmful := map[string]bool{"Put": true, "Get": true, "Close": true, "Delete": true, "Purge": true, "Repair": true, "Redrive": true}
	for _, method := range config.MethodConfig[0].Name {
		name := protoreflect.FullName(method.Service + "." + method.Method)
		if _, err := protoregistry.GlobalFiles.FindDescriptorByName(name); err != nil || harmful[method.Method] {
			t.Errorf("%s: %v", name, err)
		}
	}
	if codes := config.MethodConfig[0].RetryPolicy.RetryableStatusCodes; len(codes) != 1 || codes[0] != "UNAVAILABLE" {
		t.Errorf("repeats after %v", codes)
	}
}

// told is a Tracing that tells the value of a key of the context.
type told struct{}

func (told) Inject(ctx context.Context, headers map[string]string) {
	if span, is := ctx.Value(told{}).(string); is {
		headers["traceparent"] = span
	}
}

func (told) Extract(ctx context.Context, headers map[string]string) context.Context {
	return context.WithValue(ctx, told{}, headers["traceparent"])
}

func TestTraceContextGoesWithMessagesThatHaveNone(t *testing.T) {
	s := &service{put: func(context.Context, *headwaypb.PutRequest) (*headwaypb.PutResponse, error) { return puts(), nil }}
	queue := connect(t, s, WithTracing(told{})).Queue("q")
	plain := &headwaypb.Message{Headers: map[string]string{"of": "test"}}
	own := &headwaypb.Message{Headers: map[string]string{"traceparent": "own"}}
	if _, err := queue.PutAll(context.WithValue(t.Context(), told{}, "span"), []*headwaypb.Message{plain, own}); err != nil {
		t.Fatal(err)
	}
	messages := requests[*headwaypb.PutRequest](s)[0].Messages
	if messages[0].Headers["traceparent"] != "span" || messages[0].Headers["of"] != "test" || messages[1].Headers["traceparent"] != "own" {
		t.Errorf("put %v", messages)
	}
	if len(plain.Headers) != 1 {
		t.Error("the caller's message was changed")
	}
}
