package dev.headway;

import com.google.protobuf.ByteString;
import dev.headway.v1.AckRequest;
import dev.headway.v1.DelayRequest;
import dev.headway.v1.Delivery;
import dev.headway.v1.ExtendRequest;
import dev.headway.v1.Progress;
import dev.headway.v1.QueueServiceGrpc;
import dev.headway.v1.Settled;
import java.time.Duration;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/**
 * The right to work on one message, kept alive until it is settled or closed.
 *
 * <p>In {@code try (lease)} the message is given back at once and for free, unless it was settled before: so say
 * {@link #ack} when the work is done. {@link #run} does that by itself. Safe for many threads.
 */
public final class Lease implements AutoCloseable {
    private final Headway headway;
    private final Delivery delivery;
    private final ExtendRequest extension;
    private final Future<?> extending;
    private volatile Settled said = Settled.SETTLED_EXTENDED; // as long as it is held

    Lease(Headway headway, String queue, Delivery delivery, Duration span) {
        this.headway = headway;
        this.delivery = delivery;
        var told = ExtendRequest.newBuilder().setQueue(queue).addLeases(delivery.getLease());
        extension = told.setLease(Headway.wire(span)).build();
        long third = span.toMillis() / 3;
        // An answer that does not come leaves time for another try, and for an Ack, which waits for it.
        var most = Duration.ofMillis(Math.max(Math.min(third, headway.callTimeout.toMillis()) / 2, 100));
        Runnable keep = () -> quietly(() -> extend(extension, most));
        extending = headway.extenders.scheduleAtFixedRate(keep, third, third, TimeUnit.MILLISECONDS);
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
        return said == Settled.SETTLED_STALE || said == Settled.SETTLED_GONE || said == Settled.SETTLED_DEAD;
    }

    /**
     * Settles the message for good, with a word to those who watch it.
     *
     * @param result at most 4096 bytes; null: none
     * @throws HeadwayException LEASE_STALE or LEASE_GONE if this lease has no say any more, be it that the message is
     *     dead
     */
    public synchronized void ack(byte[] result) {
        settle(said); // a loss that is known is not asked for again
        var request = AckRequest.newBuilder().setQueue(extension.getQueue()).addLeases(delivery.getLease());
        request.setResult(result == null ? ByteString.EMPTY : ByteString.copyFrom(result));
        settle(headway.call(QueueServiceGrpc.getAckMethod(), request.build()).getResults(0).getSettled());
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
            var result = handler.handle(this);
            if (said == Settled.SETTLED_EXTENDED || isLost()) {
                ack(result);
            }
        } catch (Throwable error) { // whatever it is, it is this message's failure
            if (!(error instanceof InterruptedException || Thread.currentThread().isInterrupted())) {
                quietly(() -> delay(null, error.getClass().getName())); // its text may hold secrets
                said = isLost() ? said : Settled.SETTLED_UNSPECIFIED; // if that failed it lapses
            }
            throw error;
        } finally {
            close();
        }
    }

    /** Gives the message back at once and for free, unless it is settled; if that fails the lease lapses by itself. */
    @Override
    public void close() {
        boolean wasInterrupted = Thread.interrupted();
        quietly(() -> delay(DelayRequest.newBuilder().setDelay(Headway.wire(Duration.ZERO)).setKeepAttempt(true)));
        said = isLost() ? said : Settled.SETTLED_UNSPECIFIED;
        extending.cancel(false);
        if (wasInterrupted) {
            Thread.currentThread().interrupt();
        }
    }

    // One call at a time: an Ack that overtakes an Extend would make it look lost.
    private synchronized void extend(ExtendRequest request, Duration timeout) {
        settle(headway.call(QueueServiceGrpc.getExtendMethod(), request, request, timeout).getResults(0).getSettled());
    }

    private synchronized void delay(DelayRequest.Builder told) {
        var request = told.setQueue(extension.getQueue()).addLeases(delivery.getLease()).build();
        var answer = headway.call(QueueServiceGrpc.getDelayMethod(), request).getResults(0).getSettled();
        settle(answer == Settled.SETTLED_DEAD ? Settled.SETTLED_RELEASED : answer); // dead by this is no loss
    }

    /** Notes what the service says; throws if that, or what it said before, is that the lease is lost. */
    private void settle(Settled told) {
        said = told;
        if (told != Settled.SETTLED_EXTENDED) {
            extending.cancel(false);
        }
        if (isLost()) {
            throw HeadwayException.tooLate(told == Settled.SETTLED_GONE, "the lease has no say any more: " + told);
        }
    }

    private synchronized void quietly(Runnable call) {
        try {
            if (said == Settled.SETTLED_EXTENDED) {
                call.run();
            }
        } catch (HeadwayException error) {
            Headway.LOG.log(System.Logger.Level.WARNING, "message " + delivery.getMessage().getId(), error);
        }
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
