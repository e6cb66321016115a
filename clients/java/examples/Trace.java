import dev.headway.Headway;
import dev.headway.Traces;
import dev.headway.v1.CreateRequest;
import dev.headway.v1.DeleteRequest;
import dev.headway.v1.Message;
import dev.headway.v1.QueueServiceGrpc;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanContext;
import io.opentelemetry.api.trace.TraceFlags;
import io.opentelemetry.api.trace.TraceState;
import java.time.Duration;

/** Follows one trace from who puts a message to who works on it. */
public final class Trace {
    public static void main(String[] arguments) throws Exception {
        try (var headway = new Headway(Duration.ofSeconds(10))) {
            var queues = QueueServiceGrpc.newBlockingStub(headway); // the generated stub
            queues.create(CreateRequest.newBuilder().setQueue("java-trace").build());

            var context = SpanContext.create(
                    "0af7651916cd43dd8448eb211c80319c",
                    "b7ad6b7169203331",
                    TraceFlags.getSampled(),
                    TraceState.getDefault());
            var span = Span.wrap(context); // yours comes from your tracer
            try (var scope = span.makeCurrent()) {
                headway.put("java-trace", Duration.ZERO, Message.getDefaultInstance()); // the span goes with it
            }

            try (var lease = headway.lease("java-trace", Duration.ofSeconds(5), Duration.ofSeconds(30)).orElseThrow()) {
                var parent = Traces.context(lease.delivery().getMessage()); // to be the parent of the span of the work
                System.out.println("put in trace " + Span.fromContext(parent).getSpanContext().getTraceId());
                lease.ack(null);
            }
            queues.delete(DeleteRequest.newBuilder().setQueue("java-trace").build());
        }
    }
}
