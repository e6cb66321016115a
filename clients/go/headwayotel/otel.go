// Package headwayotel lets the Headway client carry W3C trace context with OpenTelemetry. It is a module of its own, so
// that the client depends on OpenTelemetry only where it is used.
package headwayotel

import (
	"context"
	"maps"

	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"headway.dev/go"
	"headway.dev/go/headwaypb"
)

// What the service takes: so many headers, and by its default so many bytes in a message.
const (
	mostHeaders = 64
	mostBytes   = 1 << 20
)

// Inject is for [headway.Config].Dial: the headers "traceparent" and "tracestate" of the messages that Put puts tell
// the span in which that is done, unless they have some of their own, or no room: beside 62 headers, or where the message
// would be larger than 1 MiB.
func Inject() grpc.DialOption { return grpc.WithChainUnaryInterceptor(inject) }

func inject(
	ctx context.Context, method string, request, response any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	options ...grpc.CallOption,
) error {
	headers := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, headers)
	added := proto.Size(&headwaypb.Message{Headers: headers})
	if put, is := request.(*headwaypb.PutRequest); is && len(headers) > 0 {
		put = proto.Clone(put).(*headwaypb.PutRequest) // the caller's stays as it is
		for _, message := range put.Messages {
			traced := maps.Clone(map[string]string(headers))
			maps.Copy(traced, message.Headers)
			if message.Headers["traceparent"] == "" && len(traced) <= mostHeaders && proto.Size(message)+added <= mostBytes {
				message.Headers = traced
			}
		}
		request = put
	}
	return invoke(ctx, method, request, response, conn, options...)
}

// Extract is handle with the span in which its message was put as the remote parent of new ones.
func Extract(handle headway.Handler) headway.Handler {
	return func(ctx context.Context, lease *headway.Lease) ([]byte, error) {
		headers := propagation.MapCarrier(lease.Message.GetHeaders())
		return handle(propagation.TraceContext{}.Extract(ctx, headers), lease)
	}
}
