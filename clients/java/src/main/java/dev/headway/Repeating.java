package dev.headway;

import com.google.protobuf.Message;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import java.time.Duration;
import java.util.concurrent.ThreadLocalRandom;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;

/** Makes a call again whose answer was lost or that nothing came of, within the time its caller gave. */
record Repeating(Headway headway) {
    private static final Duration FIRST_BACKOFF = Duration.ofMillis(100);
    private static final Duration MOST_BACKOFF = Duration.ofSeconds(5);
    private static final int MOST_TRIES = 5;

    /** An answer, and whether an earlier try may have taken effect: then it tells of that one, or of what is left. */
    record Answer<R>(R response, boolean isAgain) {}

    /** Five tries at most of a call that does no harm when done twice. */
    <Q extends Message, R> Answer<R> call(MethodDescriptor<Q, R> rpc, Q request) {
        return call(rpc, request, true, UnaryOperator.identity());
    }

    /**
     * Five tries at most, within the request's wait and the call timeout; a call that is not idempotent is repeated
     * only if nothing happened. {@code onLost} may change the request once a try may have taken effect. The error is
     * that of the last try, or of the one whose outcome is unknown if the last one only was not served.
     */
    <Q extends Message, R> Answer<R> call(
            MethodDescriptor<Q, R> rpc, Q first, boolean isIdempotent, UnaryOperator<Q> onLost) {
        long grace = headway.callTimeout().toNanos();
        long waitUntil = System.nanoTime() + waitOf(first).toNanos();
        long deadline = waitUntil + grace;
        // One try gets half of the time beyond the wait, so that an answer that never comes leaves time for another.
        long share = isIdempotent ? grace / 2 : grace;
        var request = first;
        HeadwayException lost = null;
        for (int failures = 1; ; failures++) {
            long now = System.nanoTime();
            long left = Math.min(deadline - now, Math.max(0, waitUntil - now) + share);
            try {
                return new Answer<>(headway.call(rpc, request, Duration.ofNanos(left)), lost != null);
            } catch (HeadwayException error) {
                var pause = pauseAfter(failures, error);
                boolean isOver = failures >= MOST_TRIES || System.nanoTime() + pause.toNanos() >= deadline;
                if (isOver || !error.isUnserved() || (!isIdempotent && error.isOutcomeUnknown())) {
                    throw lost != null && error.isUnserved() ? lost : error;
                }
                if (error.isOutcomeUnknown()) {
                    lost = error;
                    request = onLost.apply(request);
                }
                sleep(pause);
                request = withWait(request, Duration.ofNanos(Math.max(0, waitUntil - System.nanoTime())));
            }
        }
    }

    /** The wait after the n-th failure in a row: doubling from 0.1 s to 5 s, and never before the error says. */
    static Duration pauseAfter(int failures, HeadwayException error) {
        var pause = backoff(failures);
        return error.retryAfter().filter(asked -> asked.compareTo(pause) > 0).orElse(pause);
    }

    /** Doubling from 0.1 s to 5 s, with jitter. */
    static Duration backoff(int failures) {
        var span = FIRST_BACKOFF.multipliedBy(1L << Math.min(failures - 1, 16));
        var bound = span.compareTo(MOST_BACKOFF) < 0 ? span : MOST_BACKOFF;
        return Duration.ofMillis((long) (bound.toMillis() * ThreadLocalRandom.current().nextDouble(0.5, 1.0)));
    }

    /** Sleeps. An interrupted thread stays so, and fails as an interrupted call does. */
    static void sleep(Duration span) {
        try {
            Thread.sleep(span.toMillis());
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw HeadwayException.from(Status.CANCELLED.withCause(interrupted).asRuntimeException());
        }
    }

    /** Makes calls although the thread is interrupted, which it is again behind them. */
    static <R> R uninterrupted(Supplier<R> calls) {
        boolean wasInterrupted = Thread.interrupted();
        try {
            return calls.get();
        } finally {
            if (wasInterrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    /** How long a request asks the service to wait. */
    static Duration waitOf(Message request) {
        var field = request.getDescriptorForType().findFieldByName("wait");
        var wait = field == null
                ? Duration.ZERO
                : Spans.read((com.google.protobuf.Duration) request.getField(field));
        return wait.isNegative() ? Duration.ZERO : wait;
    }

    @SuppressWarnings("unchecked") // a builder builds the message that it was made of
    private static <Q extends Message> Q withWait(Q request, Duration wait) {
        var field = request.getDescriptorForType().findFieldByName("wait");
        return field == null || !request.hasField(field)
                ? request
                : (Q) request.toBuilder().setField(field, Spans.write(wait)).build();
    }
}
