package headwayotel

import (
	"context"
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
