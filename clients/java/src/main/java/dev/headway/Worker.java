package dev.headway;

import dev.headway.v1.ErrorReason;
import java.lang.System.Logger;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.function.Supplier;

/**
 * Works through a queue, some messages at a time, until the queue is drained or the worker is stopped.
 *
 * <p>It works by Get and Ack, so that leases live on over a broken connection and a restart of the service. While the
 * service is away or busy it waits and goes on, and says so in the log {@code dev.headway}.
 */
public final class Worker implements AutoCloseable {
    private static final Logger LOG = System.getLogger("dev.headway");
    private static final Duration IDLE_WAIT = Duration.ofSeconds(30); // of one Get
    private static final int FINAL_ACK_TRIES = 5; // after a stop; then the lease is left to lapse

    private final HeadwayQueue queue;
    private final Duration span;
    private final Handler handler;
    private final Runnable end = this::cutOff;
    private final Map<Thread, Boolean> slots = new HashMap<>(); // and whether each is idle; guarded by this
    private final CompletableFuture<Void> done;
    private volatile boolean isStopping;
    private volatile boolean isCancelled;
    private HeadwayException failure; // guarded by this

    /** {@code span} null: the policy's. */
    Worker(HeadwayQueue queue, int concurrency, Duration span, Handler handler) {
        if (concurrency < 1) {
            throw new IllegalArgumentException("concurrency is at least 1");
        }
        this.queue = queue;
        this.span = span;
        this.handler = handler;
        queue.headway.onClose(end);
        var ends = new CompletableFuture<?>[concurrency];
        Arrays.setAll(ends, slot -> CompletableFuture.runAsync(this::slot, queue.headway.threads));
        done = CompletableFuture.allOf(ends).thenRun(this::finish);
    }

    /** Leases no more, and lets the handlers finish what they hold. Returns at once; see {@link #join}. */
    public synchronized void stop() {
        isStopping = true;
        slots.forEach((thread, isIdle) -> {
            if (isIdle) {
                thread.interrupt();
            }
        });
    }

    /** Interrupts the handlers, whose messages are given back at once and for free. Returns at once. */
    public synchronized void cancel() {
        isStopping = true;
        isCancelled = true;
        slots.keySet().forEach(Thread::interrupt);
    }

    /**
     * The worker's end.
     *
     * @return completes when the queue is drained or the worker was stopped, and the last handler is done; with a
     *     {@link HeadwayException} if it ended because of an error that would not go away, as QUEUE_NOT_FOUND
     */
    public CompletableFuture<Void> done() {
        return done.copy();
    }

    /**
     * Waits for the worker's end.
     *
     * @throws HeadwayException if it ended because of an error that would not go away, as QUEUE_NOT_FOUND
     */
    public void join() {
        try {
            done.join();
        } catch (CompletionException error) {
            throw HeadwayException.from(error.getCause());
        }
    }

    /** Stops, and waits for the end as {@link #join} does. */
    @Override
    public void close() {
        stop();
        join();
    }

    private void cutOff() {
        cancel();
        done.exceptionally(error -> null).join();
    }

    private synchronized void finish() {
        queue.headway.forget(end);
        if (failure != null) {
            throw failure;
        }
    }

    private void slot() {
        var attempt = HeadwayQueue.newAttemptId();
        boolean isAgain = false; // a Get of this name may have leased something unknown to us
        int failures = 0;
        try {
            while (!isStopping) {
                try {
                    var name = attempt;
                    var wasLost = isAgain;
                    var lease = whileIdle(() -> queue.fetch(IDLE_WAIT, span(), name, wasLost));
                    attempt = HeadwayQueue.newAttemptId();
                    isAgain = false;
                    failures = 0;
                    lease.ifPresent(this::handle);
                } catch (HeadwayException error) {
                    if (isStopping) {
                        break;
                    }
                    if (!error.isPassing()) {
                        fail(error);
                        return;
                    }
                    isAgain |= error.isOutcomeUnknown();
                    pause(++failures, error);
                }
            }
            if (isAgain) {
                returnLost(attempt);
            }
        } finally {
            leave();
        }
    }

    private Duration span() {
        return span == null ? queue.policyLease() : span;
    }

    private void handle(Lease lease) {
        if (isStopping) {
            lease.close();
            return;
        }
        try {
            lease.run(handler, tries -> !isStopping || tries < FINAL_ACK_TRIES);
        } catch (Throwable error) { // the loop's guard: what a handler throws is its message's failure
            if (!isCancelled) {
                LOG.log(Level.WARNING, "the work on message " + lease.message().getId() + " failed", error);
            }
        }
    }

    private void pause(int failures, HeadwayException error) {
        if (failures == 1) {
            LOG.log(Level.WARNING, "queue {0}: {1}; trying again until it works", queue.name(), error.getMessage());
        }
        try {
            whileIdle(() -> {
                Repeating.sleep(Repeating.pauseAfter(failures, error));
                return Optional.empty();
            });
        } catch (HeadwayException stopped) {
            // The loop sees that.
        }
    }

    /** Gives back for free what a Get leased whose answer never came. */
    private void returnLost(String attempt) {
        try {
            Repeating.uninterrupted(() -> queue.fetch(Duration.ZERO, span(), attempt, true)).ifPresent(Lease::close);
        } catch (HeadwayException error) {
            LOG.log(Level.WARNING, "queue {0}: a message may be left leased until its lease lapses: {1}", queue.name(),
                    error.getMessage());
        }
    }

    private synchronized void fail(HeadwayException error) {
        if (!error.is(ErrorReason.ERROR_REASON_QUEUE_DRAINED) && failure == null) {
            failure = error;
        }
        stop();
    }

    /** Waits for something that a stop interrupts; empty if the stop came first. */
    private <T> Optional<T> whileIdle(Supplier<Optional<T>> waiting) {
        synchronized (this) {
            if (isStopping) {
                return Optional.empty();
            }
            slots.put(Thread.currentThread(), true);
        }
        try {
            return waiting.get();
        } finally {
            synchronized (this) {
                slots.put(Thread.currentThread(), false);
                if (!isCancelled) {
                    Thread.interrupted(); // it was the stop's, or nobody's
                }
            }
        }
    }

    private synchronized void leave() {
        slots.remove(Thread.currentThread());
        Thread.interrupted(); // the thread goes back to others
    }
}
