package main

import (
	"context"
	"fmt"
	"log"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"headway.dev/go"
	"headway.dev/go/headwayotel"
	"headway.dev/go/headwaypb"
)

func main() {
	// As a rule the span is one of a tracer: ctx, span := tracer.Start(ctx, "order").
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}})
	if err := run(trace.ContextWithSpanContext(context.Background(), span)); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	client, err := headway.Connect(headway.Config{Dial: []grpc.DialOption{headwayotel.Inject()}})
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := client.Queues.Create(ctx, &headwaypb.CreateRequest{Queue: "go-traced"}); err != nil {
		return err
	}
	messages := []*headwaypb.Message{{Payload: []byte("one book")}}
	if _, err := client.Queues.Put(ctx, &headwaypb.PutRequest{Queue: "go-traced", Messages: messages}); err != nil {
		return err
	}
	pack := func(ctx context.Context, lease *headway.Lease) ([]byte, error) {
		fmt.Println("packed in trace", trace.SpanContextFromContext(ctx).TraceID())
		return nil, nil
	}
	queue := client.Queue("go-traced")
	_, err = queue.Lease(context.Background(), headwayotel.Extract(pack), headway.Options{})
	return err
}
