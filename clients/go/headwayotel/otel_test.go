package headwayotel

import (
	"context"
	"strconv"
	"testing"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"headway.dev/go"
	"headway.dev/go/headwaypb"
)

var span = trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}})

func TestTraceContextGoesWithMessagesThatHaveNone(t *testing.T) {
	plain := &headwaypb.Message{Headers: map[string]string{"of": "test"}}
	own := &headwaypb.Message{Headers: map[string]string{"traceparent": "own"}}
	var sent []*headwaypb.Message
	invoke := func(_ context.Context, _ string, request, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
		sent = request.(*headwaypb.PutRequest).Messages
		return nil
	}
	ctx := trace.ContextWithSpanContext(t.Context(), span)
	request := &headwaypb.PutRequest{Messages: []*headwaypb.Message{plain, own}}
	if err := inject(ctx, "", request, nil, nil, invoke); err != nil {
		t.Fatal(err)
	}
	if sent[0].Headers["traceparent"] == "" || sent[0].Headers["of"] != "test" || sent[1].Headers["traceparent"] != "own" {
		t.Errorf("put %v", sent)
	}
	if len(plain.Headers) != 1 {
		t.Error("the caller's message was changed")
	}
	handle := func(ctx context.Context, _ *headway.Lease) ([]byte, error) {
		if found := trace.SpanContextFromContext(ctx); found.TraceID() != span.TraceID() || !found.IsRemote() {
			t.Errorf("found %v", found)
		}
		return nil, nil
	}
	lease := &headway.Lease{Delivery: &headwaypb.Delivery{Message: sent[0]}}
	if _, err := Extract(handle)(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
}

func TestTraceContextThatFindsNoRoomIsLeftOut(t *testing.T) {
	many := &headwaypb.Message{Headers: map[string]string{}}
	for n := range 64 {
		many.Headers[strconv.Itoa(n)] = "own"
	}
	full := &headwaypb.Message{Payload: make([]byte, 1<<20-10)}
	request := &headwaypb.PutRequest{Messages: []*headwaypb.Message{many, full}}
	invoke := func(_ context.Context, _ string, request, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
		for _, message := range request.(*headwaypb.PutRequest).Messages {
			if message.Headers["traceparent"] != "" {
				t.Errorf("put %d bytes with %d headers", len(message.Payload), len(message.Headers))
			}
		}
		return nil
	}
	if err := inject(trace.ContextWithSpanContext(t.Context(), span), "", request, nil, nil, invoke); err != nil {
		t.Fatal(err)
	}
}
