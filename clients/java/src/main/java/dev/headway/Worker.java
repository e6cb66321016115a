package dev.headway;

import dev.headway.v1.*;
import io.grpc.Context;
import java.time.Duration;
import java.util.concurrent.*;
import java.util.stream.Stream;

/**
 * Works through a queue, some messages at a time, until the queue is drained or the worker is stopped.
 *
 * <p>It works by Get and Ack, so that leases live on over a broken connection and a restart of the service. While the
 * service is away or busy it waits and goes on, and says so in the log {@code dev.headway}. See {@link Lease#run} for
 * what becomes of the messages.
 */
public final class Worker implements AutoCloseable {
    private final Context.CancellableContext idle = Context.ROOT.withCancellation(); // of what waits for messages
    private final ExecutorService threads;
    private final CompletableFuture<Void> done;

    /**
     * Begins to work.
     *
     * @param headway the connection
     * @param queue the queue's name
     * @param concurrency how many messages to work on at a time, at least 1
     * @param span how long a lease lasts if nothing extends it, as when this process dies: 100 ms to 12 h, and
     *     no longer than the service's {@code max_lease}: else it gives none
     * @param handler the work; called by many threads at once
     */
    public Worker(Headway headway, String queue, int concurrency, Duration span, Lease.Handler handler) {
        threads = Executors.newFixedThreadPool(concurrency);
        var work = idle.wrap(() -> slot(headway, queue, span, handler));
        var slots = Stream.generate(() -> CompletableFuture.runAsync(work, threads)).limit(concurrency);
        done = CompletableFuture.allOf(slots.toArray(CompletableFuture<?>[]::new));
        done.whenComplete((nothing, error) -> threads.shutdown());
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
     * Leases no more, gives back what was just sent, which takes 5 s at most, and lets the handlers finish what they
     * hold. Returns at once; see {@link #done}.
     */
    public void stop() {
        idle.cancel(null);
    }

    /** Interrupts the handlers, whose messages are given back at once and for free. Waits at most 5 s for that. */
    @Override
    public void close() {
        stop();
        threads.shutdownNow();
        done.handle((nothing, error) -> null).completeOnTimeout(null, 5, TimeUnit.SECONDS).join();
    }

    private void slot(Headway headway, String queue, Duration span, Lease.Handler handler) {
        var me = Thread.currentThread();
        // A stop ends a pause, too.
        idle.addListener(ended -> java.util.concurrent.locks.LockSupport.unpark(me), Runnable::run);
        var get = GetRequest.newBuilder().setQueue(queue).setLease(Headway.wire(span));
        get.setWait(Headway.wire(Duration.ofSeconds(30))); // of each
        // Stopped behind one that was not answered, it asks once more, and gives back what that leased.
        for (int failures = 1; !idle.isCancelled() || failures > 1; ) {
            try {
                var leased = headway.lease(get, failures > 1); // its name stays until one is answered
                leased.ifPresent(held -> Context.ROOT.run(() -> held.quietly(() -> held.run(handler))));
                failures = 1;
            } catch (HeadwayException error) {
                if (idle.isCancelled() || error.status().getReason() == ErrorReason.ERROR_REASON_QUEUE_DRAINED) {
                    return;
                }
                Thread.interrupted(); // one that a handler left: `close` stops before it interrupts
                headway.pause(Long.MAX_VALUE, failures++, error, null); // what stays ends each slot by its own Get
            }
        }
    }
}
