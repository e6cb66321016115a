package dev.headway;

import com.google.protobuf.ByteString;
import dev.headway.v1.*;
import java.time.Duration;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;

/**
 * The right to work on one message, kept alive until it is settled or closed.
 *
 * <p>In {@code try (lease)} the message is given back at once and for free, unless it was settled before: so say
 * {@link #ack} when the work is done. {@link #run} does that by itself. Safe for many threads.
 */
public final class Lease implements AutoCloseable {
    private static final Settled HELD = Settled.SETTLED_EXTENDED, SETTLING = Settled.SETTLED_UNSPECIFIED;

    private final Headway headway;
    private final Delivery delivery;
    private final ExtendRequest extension;
    private final Future<?> extending;
    private final AtomicReference<Settled> said = new AtomicReference<>(HELD); // or SETTLING, or how it ended

    /** {@code isOld}: it may have been given to an earlier try of its Get, and may lapse soon. */
    Lease(Headway headway, GetRequest get, Delivery delivery, boolean isOld) {
        this.headway = headway;
        this.delivery = delivery;
        var told = ExtendRequest.newBuilder().setQueue(get.getQueue()).addLeases(delivery.getLease());
        extension = told.setLease(get.getLease()).build();
        long third = Duration.ofSeconds(get.getLease().getSeconds(), get.getLease().getNanos()).toMillis() / 3;
        // An answer that does not come leaves time for another try.
        var most = Duration.ofMillis(Math.max(Math.min(third, headway.callTimeout.toMillis()) / 2, 100));
        Runnable keep = () -> quietly(() -> extend(extension, most));
        extending = headway.extenders.scheduleWithFixedDelay(keep, isOld ? 0 : third, third, TimeUnit.MILLISECONDS);
    }

    /**
     * The message in hand, with its ticket, attempt and times.
     *
     * @return as the service told it
     */
    public Delivery delivery() {
        return delivery;
    }

    /**
     * Whether the service said that somebody else has, or had, the message, or that it was dead when it was acked: what
     * is done with it now has no say.
     *
     * @return true from then on
     */
    public boolean isLost() {
        return said.get() == Settled.SETTLED_STALE || said.get() == Settled.SETTLED_GONE;
    }

    /**
     * Settles the message for good, with a word to those who watch it. While the service is away it is tried for as
     * long as the lease may live. What is settled is not settled again: later calls do nothing.
     *
     * @param result at most 4096 bytes; null: none
     * @throws HeadwayException LEASE_STALE or LEASE_GONE if this lease has no say any more, be it that the message is
     *     dead
     */
    public synchronized void ack(byte[] result) {
        var request = AckRequest.newBuilder().setQueue(extension.getQueue()).addLeases(delivery.getLease());
        var ack = request.setResult(result == null ? ByteString.EMPTY : ByteString.copyFrom(result)).build();
        var most = headway.callTimeout.plusSeconds(extension.getLease().getSeconds()); // while the lease may live
        var rpc = QueueServiceGrpc.getAckMethod();
        settle(SETTLING, true, () -> headway.call(rpc, ack, ack, most, new AtomicInteger()).getResults(0));
        extending.cancel(false);
    }

    /**
     * Gives the message back for a while, at the cost of an attempt.
     *
     * @param delay when it joins the line again, 0 to 366 days, where 0 is now, at the head; null: as the queue's
     *     backoff says
     * @param reason kept with the message, at most 1024 bytes
     * @throws HeadwayException LEASE_STALE or LEASE_GONE if this lease has no say any more, perhaps because an earlier
     *     try of this call did it, whose answer was lost
     */
    public void delay(Duration delay, String reason) {
        var request = DelayRequest.newBuilder().setReason(reason);
        delay(delay == null ? request : request.setDelay(Headway.wire(delay)));
    }

    /**
     * Tells watchers how far the work is, and extends the lease.
     *
     * @param fraction 0.0 to 1.0
     * @param note for people, at most 1024 bytes
     * @throws HeadwayException LEASE_STALE or LEASE_GONE if this lease has no say any more
     */
    public void progress(double fraction, String note) {
        var told = Progress.newBuilder().setFraction(fraction).setNote(note);
        extend(extension.toBuilder().setProgress(told).build(), headway.callTimeout);
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
        try {
            ack(handler.handle(this));
        } catch (Throwable error) { // whatever it is, it is this message's failure
            if (!(error instanceof InterruptedException || Thread.currentThread().isInterrupted())) {
                quietly(() -> delay(null, error.getClass().getName())); // its text may hold secrets
                said.compareAndSet(HELD, Settled.SETTLED_DELAYED); // if that failed it lapses
            }
            throw error;
        } finally {
            close();
        }
    }

    /** Gives the message back at once and for free, unless it is settled; if that fails the lease lapses by itself. */
    @Override
    public synchronized void close() {
        boolean wasInterrupted = Thread.interrupted();
        quietly(() -> delay(DelayRequest.newBuilder().setDelay(Headway.wire(Duration.ZERO)).setKeepAttempt(true)));
        said.compareAndSet(HELD, Settled.SETTLED_RELEASED); // likewise
        extending.cancel(false);
        if (wasInterrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private void extend(ExtendRequest request, Duration timeout) {
        var rpc = QueueServiceGrpc.getExtendMethod();
        settle(HELD, false, () -> headway.call(rpc, request, request, timeout, new AtomicInteger()).getResults(0));
    }

    private synchronized void delay(DelayRequest.Builder told) {
        var request = told.setQueue(extension.getQueue()).addLeases(delivery.getLease()).build();
        settle(SETTLING, false, () -> headway.call(QueueServiceGrpc.getDelayMethod(), request).getResults(0));
        extending.cancel(false);
    }

    /**
     * Makes a call on a lease that is held, and notes what the service says; throws if that, or what it said before, is
     * that the lease is lost. {@code meanwhile}: HELD, so others may go beside it; or SETTLING, so what an Extend is
     * told meanwhile does not count: an Ack that overtakes it makes the lease look lost. The end of the caller's
     * context does not cancel it: the message would lie idle until the lease lapses, and what was done be done again.
     */
    private void settle(Settled meanwhile, boolean isAck, java.util.function.Supplier<SettleResult> call) {
        if (said.compareAndSet(HELD, meanwhile) || meanwhile == HELD && said.get() == SETTLING) {
            try {
                io.grpc.Context.current().fork().run(() -> {
                    var told = call.get().getSettled();
                    said.compareAndSet(meanwhile, isAck && told == Settled.SETTLED_DEAD ? Settled.SETTLED_STALE : told);
                });
            } finally {
                said.compareAndSet(meanwhile, HELD); // it failed
            }
        }
        if (isLost()) {
            throw HeadwayException.tooLate(said.get() == Settled.SETTLED_GONE, "the lease has no say any more");
        }
    }

    /** Whatever fails, a call or the work, is this message's failure: it is told in the log, and the caller goes on. */
    void quietly(Deed deed) {
        try {
            if (!isLost()) {
                deed.run();
            }
        } catch (Throwable error) {
            Headway.LOG.log(System.Logger.Level.WARNING, "message " + delivery.getMessage().getId(), error);
        }
    }

    interface Deed {
        void run() throws Exception;
    }

    /** The work on a message. */
    public interface Handler {
        /**
         * Works on one message, whose lease is kept alive meanwhile.
         *
         * @param lease the message in hand; it may be settled here
         * @return a small result for those who watch the message, at most 4096 bytes; null if there is none
         * @throws Exception if the work failed
         */
        byte[] handle(Lease lease) throws Exception;
    }
}
