package dev.headway;

import static dev.headway.HeadwayExceptionTest.failure;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import dev.headway.v1.AckRequest;
import dev.headway.v1.DelayRequest;
import dev.headway.v1.ErrorReason;
import dev.headway.v1.ExtendRequest;
import dev.headway.v1.GetRequest;
import io.grpc.Status;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.logging.Logger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(120)
class WorkerTest extends WithService {
    private static final Duration LONG = Duration.ofMinutes(1);

    private Worker work(Lease.Handler handler) {
        return new Worker(headway, "q", 1, LONG, handler);
    }

    @Test
    void acksWhatItsHandlerReturnsFromAndEndsWhenTheQueueIsDrained() throws Exception {
        service.gets.add(FakeService.delivery("a"));
        service.gets.add(FakeService.delivery("b"));
        service.gets.add(failure(Status.Code.FAILED_PRECONDITION, "QUEUE_DRAINED"));
        work(lease -> lease.delivery().getMessage().getIdBytes().toByteArray()).done().join();
        assertEquals("a", service.next(AckRequest.class).getResult().toStringUtf8());
        assertEquals("b", service.next(AckRequest.class).getResult().toStringUtf8());
    }

    @Test
    void goesOnWhenTheServiceWasAwayUnderTheNameOfTheGetThatWasLost() throws Exception {
        for (int n = 0; n < 6; n++) { // more than the tries of one call
            service.gets.add(Status.UNAVAILABLE.asRuntimeException());
        }
        service.gets.add(FakeService.delivery("a"));
        try (var worker = work(lease -> null)) {
            var name = service.next(GetRequest.class).getAttemptId();
            for (int n = 0; n < 6; n++) {
                assertEquals(name, service.next(GetRequest.class).getAttemptId());
            }
            service.next(AckRequest.class);
            assertTrue(!worker.done().isDone());
        }
    }

    @Test
    void keepsTheNameOfAGetUntilOneIsAnsweredAndExtendsAtOnceWhatThatBrings() throws Exception {
        service.gets.add(Status.UNAVAILABLE.asRuntimeException()); // it may have leased something
        service.gets.add(failure(Status.Code.FAILED_PRECONDITION, "QUEUE_PAUSED")); // which no call makes again
        service.gets.add(FakeService.delivery("a"));
        var mayEnd = new CountDownLatch(1);
        try (var worker = new Worker(headway, "q", 1, Duration.ofHours(1), lease -> {
            mayEnd.await();
            return null;
        })) {
            var name = service.next(GetRequest.class).getAttemptId();
            assertEquals(name, service.next(GetRequest.class).getAttemptId());
            assertEquals(name, service.next(GetRequest.class).getAttemptId());
            service.next(ExtendRequest.class); // at once: most of its hour may be over
            mayEnd.countDown();
            service.next(AckRequest.class);
            assertNotEquals(name, service.next(GetRequest.class).getAttemptId());
            assertTrue(!worker.done().isDone());
        }
    }

    @Test
    void goesOnWithTheTokenOfNowAndEndsWhenThatIsRefused() throws Exception {
        for (var code : List.of(Status.Code.UNAUTHENTICATED, Status.Code.PERMISSION_DENIED)) {
            var refused = code.toStatus().asRuntimeException();
            service.gets.addAll(List.of(refused, FakeService.delivery("a"), refused, refused));
            var ended = assertThrows(CompletionException.class, () -> work(lease -> null).done().join());
            assertEquals(code, ((HeadwayException) ended.getCause()).code());
            var name = service.next(GetRequest.class).getAttemptId();
            assertEquals(name, service.next(GetRequest.class).getAttemptId());
            service.next(AckRequest.class);
            var other = service.next(GetRequest.class).getAttemptId();
            assertNotEquals(name, other);
            assertEquals(other, service.next(GetRequest.class).getAttemptId());
            assertTrue(service.gets.isEmpty());
        }
    }

    @Test
    void aGetThatDoesNotWaitAndIsRefusedIsNotMadeAgain() throws Exception {
        service.gets.addAll(List.of(Status.UNAUTHENTICATED.asRuntimeException(), FakeService.delivery("a")));
        var error = assertThrows(HeadwayException.class, () -> headway.lease("q", Duration.ZERO, LONG));
        assertEquals(Status.Code.UNAUTHENTICATED, error.code());
        assertEquals(1, service.gets.size());
    }

    @Test
    void aStopWaitsForTheHandler() throws Exception {
        service.gets.add(FakeService.delivery("a"));
        var isHandling = new CountDownLatch(1);
        var mayEnd = new CountDownLatch(1);
        var worker = work(lease -> {
            isHandling.countDown();
            mayEnd.await();
            return null;
        });
        isHandling.await();
        worker.stop();
        mayEnd.countDown();
        worker.done().join();
        service.next(AckRequest.class);
    }

    @Test
    void aStopEndsAWaitingGet() throws Exception {
        var worker = work(lease -> null);
        service.next(GetRequest.class);
        worker.stop();
        worker.done().join();
    }

    @Test
    void whatAGetLeasedThatWasCancelledByAStopOrACloseGoesBackForFree() throws Exception {
        service.inThatMoment = FakeService.delivery("a");
        for (boolean isClose : new boolean[] {false, true}) {
            var worker = work(lease -> {
                throw new AssertionError("it was worked on");
            });
            var name = service.next(GetRequest.class).getAttemptId();
            if (isClose) {
                worker.close();
            } else {
                worker.stop();
            }
            worker.done().join();
            assertEquals(name, service.next(GetRequest.class).getAttemptId());
            var back = service.next(DelayRequest.class);
            assertEquals("lease-of-a", back.getLeases(0));
            assertTrue(back.getKeepAttempt() && back.hasDelay());
        }
    }

    @Test
    void aStopEndsAPauseAndWhatTheGetBeforeItMayHaveLeasedGoesBackForFree() throws Exception {
        var busy = ErrorInfo.newBuilder().setDomain("headway.v1").setReason("OVERLOADED").build();
        var later = RetryInfo.newBuilder().setRetryDelay(Headway.wire(Duration.ofHours(1))).build();
        service.gets.add(failure(Status.Code.RESOURCE_EXHAUSTED, busy, later));
        var isPausing = new CountDownLatch(1);
        var log = Logger.getLogger("dev.headway");
        log.setFilter(told -> { // the last thing before the pause
            isPausing.countDown();
            return true;
        });
        var worker = work(lease -> null);
        isPausing.await();
        log.setFilter(null);
        service.inThatMoment = FakeService.delivery("a");
        worker.stop();
        worker.done().get(60, TimeUnit.SECONDS);
        assertEquals(service.next(GetRequest.class).getAttemptId(), service.next(GetRequest.class).getAttemptId());
        assertTrue(service.next(DelayRequest.class).getKeepAttempt());
    }

    @Test
    void anInterruptThatComesWhenItsHandlerHasEndedDoesNotEndIt() throws Exception {
        service.gets.addAll(List.of(FakeService.delivery("a"), FakeService.SILENCE, FakeService.delivery("b")));
        var handling = new CompletableFuture<Thread>();
        try (var worker = work(lease -> {
            handling.complete(Thread.currentThread());
            return null;
        })) {
            service.next(AckRequest.class);
            service.next(GetRequest.class); // of "a" the Get was before its Ack
            handling.join().interrupt();
            assertEquals("lease-of-b", service.next(AckRequest.class).getLeases(0));
            assertTrue(!worker.done().isDone());
        }
    }

    @Test
    void aCloseInterruptsTheHandlerAndGivesItsMessageBackForFree() throws Exception {
        service.gets.add(FakeService.delivery("a"));
        var isHandling = new CountDownLatch(1);
        var worker = work(lease -> {
            isHandling.countDown();
            new CountDownLatch(1).await();
            return null;
        });
        isHandling.await();
        worker.close();
        assertTrue(service.next(DelayRequest.class).getKeepAttempt());
    }

    @Test
    void whatFailsGoesToTheBackoffAndTheWorkGoesOn() throws Exception {
        service.gets.add(FakeService.delivery("a"));
        service.gets.add(FakeService.delivery("b"));
        try (var worker = work(lease -> {
            if (lease.delivery().getMessage().getId().equals("a")) {
                throw new AssertionError();
            }
            return null;
        })) {
            assertEquals("java.lang.AssertionError", service.next(DelayRequest.class).getReason());
            assertEquals("lease-of-b", service.next(AckRequest.class).getLeases(0));
            assertTrue(!worker.done().isDone());
        }
    }

    @Test
    void anErrorThatLastsEndsIt() {
        service.gets.add(failure(Status.Code.NOT_FOUND, "QUEUE_NOT_FOUND"));
        var error = assertThrows(CompletionException.class, () -> work(lease -> null).done().join());
        var cause = (HeadwayException) error.getCause();
        assertEquals(ErrorReason.ERROR_REASON_QUEUE_NOT_FOUND, cause.status().getReason());
    }

    @Test
    void anAnswerThatIsTooLargeEndsItAndOneThatSaysWhenToComeAgainDoesNot() {
        var busy = ErrorInfo.newBuilder().setDomain("headway.v1").setReason("OVERLOADED").build();
        var soon = RetryInfo.newBuilder().setRetryDelay(Headway.wire(Duration.ofMillis(1))).build();
        service.gets.add(failure(Status.Code.RESOURCE_EXHAUSTED, busy, soon));
        service.gets.add(Status.RESOURCE_EXHAUSTED.asRuntimeException());
        var error = assertThrows(CompletionException.class, () -> work(lease -> null).done().join());
        var cause = (HeadwayException) error.getCause();
        assertEquals(ErrorReason.ERROR_REASON_UNSPECIFIED, cause.status().getReason());
    }

    @Test
    void concurrencyIsAtLeastOne() {
        assertThrows(IllegalArgumentException.class, () -> new Worker(headway, "q", 0, LONG, lease -> null));
    }
}
