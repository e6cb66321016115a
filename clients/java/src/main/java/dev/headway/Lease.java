package dev.headway;

import com.google.protobuf.ByteString;
import dev.headway.v1.AckRequest;
import dev.headway.v1.DelayRequest;
import dev.headway.v1.Delivery;
import dev.headway.v1.ErrorReason;
import dev.headway.v1.ExtendRequest;
import dev.headway.v1.Message;
import dev.headway.v1.Progress;
import dev.headway.v1.QueueServiceGrpc;
import dev.headway.v1.SettleResult;
import dev.headway.v1.Settled;
import io.grpc.Status;
import java.lang.System.Logger;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.IntPredicate;
import java.util.function.Supplier;

/**
 * The right to work on one message, kept alive until it is settled or closed.
 *
 * <p>In {@code try (lease)} the message is given back at once and for free, unless it was settled before: so say
 * {@link #ack()} when the work is done. {@link #run} does that by itself. Safe for many threads.
 */
public final class Lease implements AutoCloseable {
    private static final Logger LOG = System.getLogger("dev.headway");
    private static final Set<Settled> NO_SAY = EnumSet.of(Settled.SETTLED_STALE, Settled.SETTLED_GONE);
    private static final Duration LEAST_TIMEOUT = Duration.ofMillis(100); // of an extension

    private final HeadwayQueue queue;
    private final Delivery delivery;
    private final Duration span;
    private final Runnable end = this::close;
    private final ReentrantLock settling = new ReentrantLock(); // held by whoever makes a call that may end it
    private final CompletableFuture<HeadwayException> lost = new CompletableFuture<>();
    private volatile Settled settled;
    private volatile boolean isKept = true; // alive
    private volatile Future<?> nextExtension;
    private int failures; // of extensions, in a row

    /** {@code isOld}: it was given to an earlier try of the call that brought it, so it may lapse sooner. */
    Lease(HeadwayQueue queue, Delivery delivery, Duration span, boolean isOld) {
        this.queue = queue;
        this.delivery = delivery;
        this.span = span;
        queue.headway.onClose(end);
        extendIn(isOld ? Duration.ZERO : span.dividedBy(3));
    }

    /**
     * The message in hand.
     *
     * @return as it was put
     */
    public Message message() {
        return delivery.getMessage();
    }

    /**
     * The message with its lease, ticket, attempt and times.
     *
     * @return as the service told it
     */
    public Delivery delivery() {
        return delivery;
    }

    /**
     * Whether the service said that somebody else has, or had, the message: what is done with it now has no say.
     *
     * @return true from then on
     */
    public boolean isLost() {
        return lost.isDone();
    }

    /**
     * Tells as soon as it is known that the lease was lost.
     *
     * @return completes with LEASE_STALE or LEASE_GONE, or never
     */
    public CompletableFuture<HeadwayException> lost() {
        return lost.copy();
    }

    /**
     * Settles the message for good.
     *
     * @return what the service said: ACKED or ALREADY_ACKED, or DEAD if it came too late
     * @throws HeadwayException LEASE_STALE or LEASE_GONE if this lease has no say any more
     */
    public SettleResult ack() {
        return ack(new byte[0]);
    }

    /**
     * Settles the message for good, with a word to those who watch it.
     *
     * @param result at most 4096 bytes
     * @return what the service said: ACKED or ALREADY_ACKED, or DEAD if it came too late
     * @throws HeadwayException LEASE_STALE or LEASE_GONE if this lease has no say any more
     */
    public SettleResult ack(byte[] result) {
        var request = AckRequest.newBuilder()
                .setQueue(queue.name())
                .addLeases(delivery.getLease())
                .setResult(ByteString.copyFrom(result))
                .build();
        return settle(() -> book(queue.repeating
                .call(QueueServiceGrpc.getAckMethod(), request)
                .response()
                .getResults(0)));
    }

    /**
     * Gives the message to the queue's backoff, at the cost of an attempt.
     *
     * @param reason kept with the message, at most 1024 bytes
     * @return what the service said: DELAYED, RELEASED or DEAD. If an answer was lost and the call made again, STALE or
     *     GONE means that the first try most likely did it.
     * @throws HeadwayException LEASE_STALE or LEASE_GONE if this lease has no say any more
     */
    public SettleResult delay(String reason) {
        return delay(DelayRequest.newBuilder().setReason(reason));
    }

    /**
     * Gives the message back for a while, at the cost of an attempt.
     *
     * @param delay when it joins the line again, 0 to 366 days; 0 is now, at the head
     * @param reason kept with the message, at most 1024 bytes
     * @return as {@link #delay(String)}
     * @throws HeadwayException LEASE_STALE or LEASE_GONE if this lease has no say any more
     */
    public SettleResult delay(Duration delay, String reason) {
        return delay(DelayRequest.newBuilder().setDelay(Spans.write(delay)).setReason(reason));
    }

    /**
     * Gives the message back to the head of the line, now and for free: it was not worked on.
     *
     * @return as {@link #delay(String)}
     * @throws HeadwayException LEASE_STALE or LEASE_GONE if this lease has no say any more
     */
    public SettleResult release() {
        return delay(DelayRequest.newBuilder().setDelay(Spans.write(Duration.ZERO)).setKeepAttempt(true));
    }

    /**
     * Tells watchers how far the work is, and extends the lease.
     *
     * @param fraction 0.0 to 1.0
     * @param note for people, at most 1024 bytes
     * @return what the service said: EXTENDED
     * @throws HeadwayException LEASE_STALE or LEASE_GONE if this lease has no say any more
     */
    public SettleResult progress(double fraction, String note) {
        var progress = Progress.newBuilder().setFraction(fraction).setNote(note);
        var request = extension().setProgress(progress).build();
        return book(queue.repeating
                .call(QueueServiceGrpc.getExtendMethod(), request)
                .response()
                .getResults(0));
    }

    /**
     * Works on the message and settles it by how that ends, unless the work did: acks it with the result if it returns;
     * gives it to the queue's backoff if it throws; gives it back at once and for free if it was interrupted.
     *
     * @param handler the work, done by this thread
     * @throws HeadwayException LEASE_STALE or LEASE_GONE if the work was done, but too late to count
     * @throws Exception what the work threw
     */
    public void run(Handler handler) throws Exception {
        run(handler, failures -> false);
    }

    /** {@code isPatient}: whether to try the ack again after the n-th failure in passing. */
    void run(Handler handler, IntPredicate isPatient) throws Exception {
        boolean isDone = false;
        try {
            byte[] result = handler.handle(this);
            isDone = true;
            if (isLost()) {
                throw lost.join();
            }
            if (settled == null) {
                Repeating.uninterrupted(() -> finish(result == null ? new byte[0] : result, isPatient));
            }
        } catch (Throwable error) { // whatever it is, it is this message's failure
            boolean isCancelled = error instanceof InterruptedException || Thread.currentThread().isInterrupted();
            boolean isUntold = isDone && error instanceof HeadwayException ack && ack.isPassing();
            if (!isCancelled && !isUntold) {
                quietly(() -> delay(error.getClass().getName())); // its text may hold secrets
            }
            throw error;
        } finally {
            close();
        }
    }

    /** Gives the message back at once and for free, unless it is settled; if that fails the lease lapses by itself. */
    @Override
    public void close() {
        quietly(this::release);
        stopExtending();
    }

    private SettleResult finish(byte[] result, IntPredicate isPatient) {
        for (int tries = 1; ; tries++) {
            try {
                return ack(result);
            } catch (HeadwayException error) {
                if (isLost() || !error.isPassing() || !isPatient.test(tries)) {
                    throw error;
                }
                Repeating.sleep(Repeating.pauseAfter(tries, error));
            }
        }
    }

    private void quietly(Supplier<SettleResult> giveBack) {
        try {
            settle(() -> settled == null ? Repeating.uninterrupted(giveBack) : null);
        } catch (HeadwayException error) {
            LOG.log(Level.WARNING, "could not give message {0} back: {1}", message().getId(), error.getMessage());
        }
    }

    private SettleResult delay(DelayRequest.Builder told) {
        var request = told.setQueue(queue.name()).addLeases(delivery.getLease()).build();
        return settle(() -> {
            var answer = queue.repeating.call(QueueServiceGrpc.getDelayMethod(), request);
            var result = answer.response().getResults(0);
            if (answer.isAgain() && NO_SAY.contains(result.getSettled())) {
                end(result.getSettled());
                return result;
            }
            return book(result);
        });
    }

    // While somebody settles it there is nothing to extend: an Ack that overtakes would make it look lost.
    private SettleResult settle(Supplier<SettleResult> call) {
        settling.lock();
        try {
            return call.get();
        } finally {
            settling.unlock();
        }
    }

    /** Notes what the service said; throws if this lease has no say any more. */
    private SettleResult book(SettleResult result) {
        var said = result.getSettled();
        if (said == Settled.SETTLED_EXTENDED) {
            return result;
        }
        end(said);
        if (NO_SAY.contains(said)) {
            boolean isStale = said == Settled.SETTLED_STALE;
            var code = isStale ? Status.FAILED_PRECONDITION : Status.NOT_FOUND;
            var reason = isStale ? ErrorReason.ERROR_REASON_LEASE_STALE : ErrorReason.ERROR_REASON_LEASE_GONE;
            var text = "the lease of message " + message().getId() + " has no say any more";
            lost.complete(new HeadwayException(
                    code.withDescription(text), reason, Map.of("queue", queue.name()), List.of()));
            throw lost.join();
        }
        return result;
    }

    private void end(Settled said) {
        settled = said;
        stopExtending();
    }

    private void stopExtending() {
        isKept = false;
        queue.headway.forget(end);
        nextExtension.cancel(false);
    }

    private ExtendRequest.Builder extension() {
        return ExtendRequest.newBuilder()
                .setQueue(queue.name())
                .addLeases(delivery.getLease())
                .setLease(Spans.write(span));
    }

    private void extendIn(Duration pause) {
        nextExtension = queue.headway.later(pause, () -> queue.headway.threads.execute(this::extend));
        if (!isKept) {
            nextExtension.cancel(false);
        }
    }

    private void extend() {
        var pause = span.dividedBy(3);
        try {
            if (!settling.isLocked()) {
                var timeout = pause.compareTo(LEAST_TIMEOUT) > 0 ? pause : LEAST_TIMEOUT;
                var rpc = QueueServiceGrpc.getExtendMethod();
                hear(queue.headway.call(rpc, extension().build(), timeout).getResults(0));
            }
            failures = 0;
            extendIn(pause);
        } catch (HeadwayException error) {
            if (isKept) {
                var text = "could not extend the lease of message {0}: {1}";
                LOG.log(Level.WARNING, text, message().getId(), error.getMessage());
            }
            var backoff = Repeating.pauseAfter(++failures, error);
            extendIn(backoff.compareTo(pause) < 0 ? backoff : pause);
        }
    }

    private void hear(SettleResult result) {
        if (!settling.isLocked() && settled == null) {
            try {
                book(result);
            } catch (HeadwayException error) {
                LOG.log(Level.WARNING, error.getMessage());
            }
        }
    }
}
