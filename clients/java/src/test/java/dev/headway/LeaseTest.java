package dev.headway;

import static dev.headway.HeadwayExceptionTest.failure;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.headway.v1.AckRequest;
import dev.headway.v1.DelayRequest;
import dev.headway.v1.ErrorReason;
import dev.headway.v1.ExtendRequest;
import dev.headway.v1.GetRequest;
import dev.headway.v1.Settled;
import io.grpc.Context;
import io.grpc.Status;
import java.time.Duration;
import java.time.Instant;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

class LeaseTest extends WithService {
    private static final Duration LONG = Duration.ofMinutes(1);

    @BeforeEach
    void put() {
        service.gets.add(FakeService.delivery("a"));
    }

    private Lease lease(Duration span) {
        return headway.lease("q", Duration.ZERO, span).orElseThrow();
    }

    @Test
    void isExtendedWhileItIsOpen() throws Exception {
        try (var lease = lease(Duration.ofMillis(30))) {
            for (int n = 0; n < 3; n++) {
                var request = service.next(ExtendRequest.class);
                assertEquals(lease.delivery().getLease(), request.getLeases(0));
                assertEquals(Headway.wire(Duration.ofMillis(30)), request.getLease());
            }
        }
    }

    @Test
    void goesBackAtOnceAndForFreeIfItIsLeftUnsettled() throws Exception {
        lease(LONG).close();
        var request = service.next(DelayRequest.class);
        assertTrue(request.hasDelay() && request.getKeepAttempt());
        assertEquals(Headway.wire(Duration.ZERO), request.getDelay());
    }

    @Test
    void isNotGivenBackOnceItIsAcked() throws Exception {
        try (var lease = lease(LONG)) {
            lease.ack(new byte[] {7});
        }
        assertArrayEquals(new byte[] {7}, service.next(AckRequest.class).getResult().toByteArray());
        assertTrue(service.asked.isEmpty());
    }

    @Test
    void workThatReturnsIsAckedWithItsResult() throws Exception {
        lease(LONG).run(lease -> new byte[] {7});
        assertArrayEquals(new byte[] {7}, service.next(AckRequest.class).getResult().toByteArray());
    }

    @Test
    void workThatThrowsGoesToTheBackoffAndItsTextIsNotTold() throws Exception {
        var lease = lease(LONG);
        assertThrows(IllegalStateException.class, () -> lease.run(held -> {
            throw new IllegalStateException("a secret");
        }));
        var request = service.next(DelayRequest.class);
        assertFalse(request.hasDelay() || request.getKeepAttempt());
        assertEquals("java.lang.IllegalStateException", request.getReason());
    }

    @Test
    void workThatIsInterruptedGoesBackForFree() throws Exception {
        var lease = lease(LONG);
        assertThrows(InterruptedException.class, () -> lease.run(held -> {
            throw new InterruptedException();
        }));
        assertTrue(service.next(DelayRequest.class).getKeepAttempt());
    }

    @Test
    @Timeout(120)
    void tellsThatItWasLost() throws Exception {
        service.extendSays = Settled.SETTLED_STALE;
        try (var lease = lease(Duration.ofMillis(30))) {
            while (!lease.isLost()) {
                Thread.sleep(1);
            }
        }
    }

    @Test
    void workThatIsDoneTooLateFails() {
        service.ackSays = Settled.SETTLED_GONE;
        var error = assertThrows(HeadwayException.class, () -> lease(LONG).run(lease -> null));
        assertTrue(error.status().getReason() == ErrorReason.ERROR_REASON_LEASE_GONE);
    }

    @Test
    void anAckOfADeadMessageIsTooLate() {
        service.ackSays = Settled.SETTLED_DEAD;
        var lease = lease(LONG);
        var error = assertThrows(HeadwayException.class, () -> lease.run(held -> null));
        assertEquals(ErrorReason.ERROR_REASON_LEASE_STALE, error.status().getReason());
        assertEquals(Status.Code.FAILED_PRECONDITION, error.code());
        assertTrue(lease.isLost() && !error.isOutcomeUnknown());
    }

    @Test
    void aDelayMayLeaveItsMessageDead() {
        service.delaySays = Settled.SETTLED_DEAD;
        try (var lease = lease(LONG)) {
            lease.delay(null, "for the last time");
            assertFalse(lease.isLost());
        }
    }

    @Test
    @Timeout(120)
    void workThatLostItsLeaseEndsWithThatAndAcksNothing() {
        service.extendSays = Settled.SETTLED_STALE;
        service.ackSays = Settled.SETTLED_ACKED; // as it may: the lease lapsed, and nobody took the message
        var error = assertThrows(HeadwayException.class, () -> lease(Duration.ofMillis(30)).run(lease -> {
            while (!lease.isLost()) {
                Thread.sleep(1);
            }
            return null;
        }));
        assertEquals(ErrorReason.ERROR_REASON_LEASE_STALE, error.status().getReason());
        assertTrue(service.asked.stream().noneMatch(AckRequest.class::isInstance));
    }

    @Test
    @Timeout(120)
    void anExtendWithoutAnAnswerDoesNotCostTheLease() throws Exception {
        service.unanswered.set(1);
        try (var lease = lease(Duration.ofMillis(1500))) {
            service.next(ExtendRequest.class); // after half a second
            var first = Instant.now();
            service.next(ExtendRequest.class);
            var later = Duration.between(first, Instant.now());
            assertTrue(later.toMillis() < 1000, "the second came " + later + " later");
            assertFalse(lease.isLost());
        }
    }

    @Test
    @Timeout(120)
    void anAckDoesNotWaitForAnExtendWithoutAnAnswer() throws Exception {
        service.unanswered.set(1);
        try (var lease = lease(Duration.ofMillis(1500))) {
            service.next(ExtendRequest.class);
            var asked = Instant.now();
            lease.ack(null);
            var waited = Duration.between(asked, Instant.now());
            assertTrue(waited.toSeconds() < 5, "it took " + waited);
        }
    }

    @Test
    @Timeout(120)
    void isExtendedWhileTheAnswerToItsProgressDoesNotCome() throws Exception {
        service.isProgressAnswered = false;
        try (var lease = lease(Duration.ofMillis(30))) {
            var telling = new Thread(() -> assertThrows(HeadwayException.class, () -> lease.progress(0.5, "half")));
            telling.start();
            while (!service.next(ExtendRequest.class).hasProgress()) {
                assertTrue(telling.isAlive());
            }
            for (int n = 0; n < 3; n++) {
                assertFalse(service.next(ExtendRequest.class).hasProgress());
            }
            assertTrue(telling.isAlive());
            lease.ack(null); // which does not wait for that
            telling.interrupt();
            telling.join();
        }
        assertFalse(service.next(AckRequest.class).getLeases(0).isEmpty());
    }

    @Test
    @Timeout(120)
    void isExtendedWhileItsAckIsBeingTriedAndNotLostByWhatThatIsTold() throws Exception {
        service.areAcksAnswered = false;
        service.extendSays = Settled.SETTLED_GONE; // as it is where the Ack overtakes it
        try (var lease = lease(Duration.ofMillis(1500))) {
            var acking = new Thread(() -> assertThrows(HeadwayException.class, () -> lease.ack(null)));
            acking.start();
            service.next(AckRequest.class);
            service.next(ExtendRequest.class);
            service.next(ExtendRequest.class); // the first is answered
            assertFalse(lease.isLost());
            service.extendSays = Settled.SETTLED_EXTENDED;
            service.next(ExtendRequest.class);
            service.next(ExtendRequest.class); // what comes to no Ack any more does not say that it is lost
            acking.interrupt();
            acking.join();
            assertFalse(lease.isLost());
        }
    }

    @Test
    void onceItIsSettledLaterCallsDoNothing() throws Exception {
        var acked = lease(LONG);
        acked.run(lease -> {
            lease.ack(null);
            lease.progress(1.0, "all of it");
            lease.delay(null, "again");
            lease.ack(null);
            return null;
        });
        service.next(AckRequest.class);
        assertTrue(service.asked.isEmpty() && !acked.isLost());
    }

    @Test
    void anAckThatFailsLeavesItHeld() throws Exception {
        service.acks.add(Status.INVALID_ARGUMENT.asRuntimeException()); // a result that is too long
        try (var lease = lease(LONG)) {
            assertThrows(HeadwayException.class, () -> lease.ack(new byte[5000]));
            lease.progress(0.9, "once more");
            lease.ack(null);
        }
        service.next(AckRequest.class);
        service.next(ExtendRequest.class);
        service.next(AckRequest.class);
    }

    @Test
    void aRepeatThatFindsTheQueueDrainedSaysSo() {
        service.gets.addFirst(failure(Status.Code.FAILED_PRECONDITION, "QUEUE_DRAINED"));
        service.gets.addFirst(Status.UNAVAILABLE.asRuntimeException());
        var error = assertThrows(HeadwayException.class, () -> lease(LONG));
        assertEquals(ErrorReason.ERROR_REASON_QUEUE_DRAINED, error.status().getReason());
    }

    @Test
    void aLostAnswerIsAskedForByTheSameNameAndExtendedAtOnce() throws Exception {
        service.gets.addFirst(Status.UNAVAILABLE.asRuntimeException());
        try (var lease = lease(Duration.ofHours(1))) {
            var first = service.next(GetRequest.class).getAttemptId();
            assertEquals(first, service.next(GetRequest.class).getAttemptId());
            assertEquals("a", lease.delivery().getMessage().getId());
            service.next(ExtendRequest.class); // at once: most of its span may be over
        }
    }

    @Test
    void goesBackFromAThreadThatIsInterruptedWhichStaysSo() throws Exception {
        try (var lease = lease(LONG)) {
            Thread.currentThread().interrupt();
            assertFalse(lease.isLost());
        }
        assertTrue(Thread.interrupted());
        assertTrue(service.next(DelayRequest.class).getKeepAttempt());
    }

    @Test
    void goesBackForFreeWhenItsContextHasEnded() throws Exception {
        var context = Context.current().withCancellation();
        context.run(() -> {
            try (var lease = lease(LONG)) {
                context.cancel(null);
                assertFalse(lease.isLost());
            }
        });
        assertTrue(service.next(DelayRequest.class).getKeepAttempt());
    }

    @Test
    void workThatReturnsWhenItsContextHasEndedIsAcked() throws Exception {
        var context = Context.current().withCancellation();
        Lease.Handler handler = lease -> {
            context.cancel(null);
            return new byte[] {7};
        };
        context.call(() -> {
            lease(LONG).run(handler);
            return null;
        });
        assertArrayEquals(new byte[] {7}, service.next(AckRequest.class).getResult().toByteArray());
        assertTrue(service.asked.isEmpty());
    }

    @Test
    void whatAGetLeasedThatWasInterruptedGoesBackForFreeAndTheThreadStaysInterrupted() throws Exception {
        service.gets.clear();
        service.inThatMoment = FakeService.delivery("a");
        Thread.currentThread().interrupt();
        var error = assertThrows(HeadwayException.class, () -> lease(LONG));
        assertTrue(Thread.interrupted());
        assertEquals(Status.Code.CANCELLED, error.code());
        assertTrue(service.next(DelayRequest.class).getKeepAttempt());
    }
}
