// Package headwayotel lets the Headway client carry W3C trace context with OpenTelemetry. It is a module of its own, so
// that the client depends on OpenTelemetry only where it is used.
package headwayotel

import (
	"context"

	"go.opentelemetry.io/otel/propagation"

	"headway.dev/go"
)

type tracing struct{ propagation.TraceContext }

// Tracing is for [headway.WithTracing]: the headers "traceparent" and "tracestate" of a message tell the span in which
// it was put, and handlers find that span in their context as the remote parent of new ones.
func Tracing() headway.Tracing { return tracing{} }

func (t tracing) Inject(ctx context.Context, headers map[string]string) {
	t.TraceContext.Inject(ctx, propagation.MapCarrier(headers))
}

func (t tracing) Extract(ctx context.Context, headers map[string]string) context.Context {
	return t.TraceContext.Extract(ctx, propagation.MapCarrier(headers))
}
