package dev.headway;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.Timestamp;
import com.google.rpc.ErrorInfo;
import dev.headway.v1.ErrorReason;
import dev.headway.v1.Finished;
import dev.headway.v1.Outcome;
import dev.headway.v1.Position;
import dev.headway.v1.WatchPositionRequest;
import dev.headway.v1.WatchPositionResponse;
import io.grpc.Status;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.logging.Logger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(120)
class WatchTest extends WithService {
    private static final Object AWAY = Status.UNAVAILABLE.asRuntimeException();
    private static final Object NO_QUEUE = HeadwayExceptionTest.failure(
            Status.Code.NOT_FOUND, ErrorInfo.newBuilder().setDomain("headway.v1").setReason("QUEUE_NOT_FOUND").build());

    private List<WatchPositionResponse> watch(String... ids) {
        var told = new ArrayList<WatchPositionResponse>();
        try (var watch = new Watch(headway, "q", Set.of(ids), false)) {
            watch.forEachRemaining(told::add);
        }
        return told;
    }

    @Test
    void asksAnewForWhatHasNotEndedWhenTheStreamBreaks() throws Exception {
        service.watches.add(List.of(place("a", 2, 5), finished("b", 6), AWAY));
        service.watches.add(List.of(place("a", 1, 7), finished("a", 8)));
        assertEquals(List.of(place("a", 2, 5), finished("b", 6), place("a", 1, 7), finished("a", 8)), watch("a", "b"));
        assertEquals(2, service.next(WatchPositionRequest.class).getMessages().getIdsCount());
        assertEquals(List.of("a"), service.next(WatchPositionRequest.class).getMessages().getIdsList());
    }

    @Test
    void aStreamThatEndsBeforeItsLastWordIsOpenedAnewAfterAPause() {
        service.watches.addAll(List.of(List.of(), List.of(), List.of(place("a", 1, 7)), List.of(finished("a", 8))));
        var me = Thread.currentThread();
        var pauses = new AtomicInteger();
        var log = Logger.getLogger("dev.headway");
        log.setFilter(told -> { // each pause is told
            pauses.addAndGet(Thread.currentThread() == me ? 1 : 0);
            return true;
        });
        try {
            assertEquals(List.of(place("a", 1, 7), finished("a", 8)), watch("a"));
        } finally {
            log.setFilter(null);
        }
        assertEquals(3, pauses.get());
    }

    @Test
    void aStreamThatSaysNothingIsOpenedAnew() {
        service.watches.add(List.of(FakeService.SILENCE));
        service.watches.add(List.of(finished("a", 8)));
        try (var impatient = new Headway(Duration.ofSeconds(1), service.address());
                var watch = new Watch(impatient, "q", Set.of("a"), false)) {
            assertEquals(finished("a", 8), watch.next());
        }
    }

    @Test
    void aQueueThatIsNotThereIsAnError() {
        service.watches.add(List.of(NO_QUEUE));
        var error = assertThrows(HeadwayException.class, () -> watch("a"));
        assertTrue(error.status().getReason() == ErrorReason.ERROR_REASON_QUEUE_NOT_FOUND);
    }

    @Test
    void whatWasServedGoesOnWithTheTokenOfNowAndEndsWhenThatIsRefused() throws Exception {
        for (var code : List.of(Status.Code.UNAUTHENTICATED, Status.Code.PERMISSION_DENIED)) {
            var refused = code.toStatus().asRuntimeException();
            service.watches.add(List.of(place("a", 2, 5), refused));
            service.watches.add(List.of(place("a", 1, 7), refused));
            service.watches.add(List.of(refused));
            try (var watch = new Watch(headway, "q", Set.of("a"), false)) {
                assertEquals(place("a", 2, 5), watch.next());
                assertEquals(place("a", 1, 7), watch.next());
                assertEquals(code, assertThrows(HeadwayException.class, watch::hasNext).code());
            }
        }
        assertEquals(6, service.asked.size());
    }

    @Test
    void whoIsRefusedBeforeItIsServedIsTold() {
        service.watches.add(List.of(Status.UNAUTHENTICATED.asRuntimeException()));
        var error = assertThrows(HeadwayException.class, () -> watch("a"));
        assertEquals(Status.Code.UNAUTHENTICATED, error.code());
        assertEquals(1, service.asked.size());
    }

    @Test
    void noIdsAreNoNews() {
        assertFalse(new Watch(headway, "q", Set.of(), false).hasNext());
    }

    private static WatchPositionResponse place(String id, long position, long second) {
        return WatchPositionResponse.newBuilder()
                .setAsOf(Timestamp.newBuilder().setSeconds(second))
                .setPosition(Position.newBuilder().setId(id).setPosition(position))
                .build();
    }

    private static WatchPositionResponse finished(String id, long second) {
        return WatchPositionResponse.newBuilder()
                .setAsOf(Timestamp.newBuilder().setSeconds(second))
                .setFinished(Finished.newBuilder().setId(id).setOutcome(Outcome.OUTCOME_DONE))
                .build();
    }
}
