package dev.headway;

import static dev.headway.HeadwayExceptionTest.failure;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import dev.headway.v1.Message;
import dev.headway.v1.OnDuplicate;
import dev.headway.v1.PutRequest;
import dev.headway.v1.PutResponse;
import dev.headway.v1.PutResult;
import io.grpc.Status;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanContext;
import io.opentelemetry.api.trace.TraceFlags;
import io.opentelemetry.api.trace.TraceState;
import io.opentelemetry.context.Context;
import java.io.File;
import java.net.URL;
import java.net.URLClassLoader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class PutTest extends WithService {
    private static final Message NAMED = Message.newBuilder().setId("a").build();
    private static final Message NAMELESS = Message.getDefaultInstance();
    private static final String PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    @Test
    void aLostAnswerIsAskedForAgainIfTheMessageHasAnId() throws Exception {
        service.puts.add(Status.UNAVAILABLE.asRuntimeException());
        service.puts.add(response(PutResult.newBuilder().setId("a").setDeduplicated(true)));
        var result = headway.put("q", Duration.ZERO, NAMED).get(0);
        assertTrue(result.getDeduplicated());
        assertEquals(OnDuplicate.ON_DUPLICATE_UNSPECIFIED, service.next(PutRequest.class).getOnDuplicate());
        assertEquals(OnDuplicate.ON_DUPLICATE_KEEP, service.next(PutRequest.class).getOnDuplicate());
    }

    @Test
    void whatOnlyTheServiceCancelledIsMadeAgain() throws Exception {
        service.puts.add(Status.CANCELLED.asRuntimeException()); // as gRPC ends what a process that goes has not begun
        service.puts.add(response(PutResult.newBuilder().setId("a")));
        assertEquals("a", headway.put("q", Duration.ZERO, NAMED).get(0).getId());
    }

    @Test
    void aLostAnswerIsAnErrorIfAMessageHasNoId() throws Exception {
        service.puts.add(Status.UNAVAILABLE.asRuntimeException());
        var error = assertThrows(HeadwayException.class, () -> headway.put("q", Duration.ZERO, NAMELESS));
        assertTrue(error.isOutcomeUnknown());
        service.next(PutRequest.class);
        assertTrue(service.asked.isEmpty());
    }

    @Test
    void itStaysAsItIsUntilATryMayHaveDoneIt() throws Exception {
        var isStopping = failure(Status.Code.UNAVAILABLE, "SHUTTING_DOWN"); // nothing happened
        service.puts.addAll(List.of(isStopping, Status.UNAVAILABLE.asRuntimeException(), isStopping));
        service.puts.add(response(PutResult.newBuilder().setId("a")));
        headway.put("q", Duration.ZERO, NAMED);
        var asItIs = OnDuplicate.ON_DUPLICATE_UNSPECIFIED;
        var keep = OnDuplicate.ON_DUPLICATE_KEEP;
        for (var told : List.of(asItIs, asItIs, keep, keep)) {
            assertEquals(told, service.next(PutRequest.class).getOnDuplicate());
        }
    }

    @Test
    void whatMayHaveHappenedIsToldWhateverTheLastTrySays() {
        var info = ErrorInfo.newBuilder().setDomain("headway.v1").setReason("SHUTTING_DOWN").build();
        var later = RetryInfo.newBuilder().setRetryDelay(Headway.wire(Duration.ofHours(1))).build();
        service.puts.add(Status.UNAVAILABLE.asRuntimeException());
        service.puts.add(failure(Status.Code.UNAVAILABLE, info, later));
        var error = assertThrows(HeadwayException.class, () -> headway.put("q", Duration.ZERO, NAMED));
        assertTrue(error.isOutcomeUnknown());
    }

    @ParameterizedTest
    @CsvSource({
        "RESOURCE_EXHAUSTED, OVERLOADED, true",
        "RESOURCE_EXHAUSTED, QUEUE_FULL, true",
        "UNAUTHENTICATED, UNAUTHENTICATED, true",
        "PERMISSION_DENIED, PERMISSION_DENIED, true",
        "INTERNAL, INTERNAL, true",
        "FAILED_PRECONDITION, QUEUE_CLOSED, true",
        "FAILED_PRECONDITION, ROLE_IN_USE, true",
        "NOT_FOUND, QUEUE_NOT_FOUND, false",
        "ALREADY_EXISTS, DUPLICATE_MESSAGE, false",
        "INVALID_ARGUMENT, FIELD_INVALID, false",
    })
    void aRepeatThatIsRefusedUnseenLeavesTheDoubt(Status.Code code, String reason, boolean isDoubted) {
        service.puts.add(Status.UNAVAILABLE.asRuntimeException());
        service.puts.add(failure(code, reason));
        var error = assertThrows(HeadwayException.class, () -> headway.put("q", Duration.ZERO, NAMED));
        assertEquals(isDoubted, error.isOutcomeUnknown());
    }

    @Test
    void theCurrentSpanGoesIntoTheHeaders() throws Exception {
        service.puts.add(response(PutResult.newBuilder()));
        var state = TraceState.builder().put("vendor", "x").build();
        var parts = PARENT.split("-");
        var span = SpanContext.create(parts[1], parts[2], TraceFlags.getSampled(), state);
        var told = Message.newBuilder().putHeaders("traceparent", "mine").build();
        Context.root().with(Span.wrap(span)).wrap(() -> headway.put("q", Duration.ZERO, NAMELESS, told)).call();

        var put = service.next(PutRequest.class);
        assertEquals(PARENT, put.getMessages(0).getHeadersOrThrow("traceparent"));
        assertEquals("vendor=x", put.getMessages(0).getHeadersOrThrow("tracestate"));
        assertEquals(told, put.getMessages(1));
        var found = Span.fromContext(Traces.context(put.getMessages(0))).getSpanContext();
        assertEquals(span.getSpanId(), found.getSpanId());
    }

    @Test
    void traceContextThatFindsNoRoomIsLeftOut() {
        var many = Message.newBuilder();
        for (int n = 0; n < 64; n++) {
            many.putHeaders("own" + n, "x");
        }
        var full = Message.newBuilder().setPayload(ByteString.copyFrom(new byte[(1 << 20) - 10])).build();
        var parts = PARENT.split("-");
        var span = SpanContext.create(parts[1], parts[2], TraceFlags.getSampled(), TraceState.getDefault());
        Runnable inject = () -> {
            assertEquals(many.build(), Traces.inject(many.build()));
            assertEquals(full, Traces.inject(full));
        };
        Context.root().with(Span.wrap(span)).wrap(inject).run();
    }

    @Test
    void withoutASpanAMessageStaysAsItIs() throws Exception {
        service.puts.add(response(PutResult.newBuilder()));
        headway.put("q", Duration.ZERO, NAMELESS);
        assertEquals(NAMELESS, service.next(PutRequest.class).getMessages(0));
    }

    @Test
    void openTelemetryNeedNotBeThere() throws Exception {
        var urls = new ArrayList<URL>();
        for (var entry : System.getProperty("java.class.path").split(File.pathSeparator)) {
            if (!entry.contains("opentelemetry")) {
                urls.add(new File(entry).toURI().toURL());
            }
        }
        // Never closed: threads of the connection outlive it for a moment.
        var loader = new URLClassLoader(urls.toArray(URL[]::new), ClassLoader.getPlatformClassLoader());
        ((Runnable) loader.loadClass(PutWithoutTraces.class.getName()).getConstructor().newInstance()).run();
    }

    private static PutResponse response(PutResult.Builder result) {
        return PutResponse.newBuilder().addResults(result).build();
    }
}
