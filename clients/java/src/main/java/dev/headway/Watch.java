package dev.headway;

import com.google.protobuf.Timestamp;
import dev.headway.v1.ErrorReason;
import dev.headway.v1.Finished;
import dev.headway.v1.MessageIds;
import dev.headway.v1.Outcome;
import dev.headway.v1.QueueServiceGrpc;
import dev.headway.v1.WatchPositionRequest;
import dev.headway.v1.WatchPositionResponse;
import io.grpc.CallOptions;
import io.grpc.Context;
import io.grpc.Context.CancellableContext;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ClientCalls;
import java.time.Instant;
import java.util.ArrayDeque;
import java.util.Collection;
import java.util.Deque;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.NoSuchElementException;

/**
 * Where messages are, at once and then whenever that changes, until the last is finished.
 *
 * <p>Loop over it: {@link #hasNext} blocks for the next news. When the stream breaks it is opened anew, for as long as
 * the service is away, and then tells how a message ended as long as that is remembered; what is told of a message
 * never goes back in time. A message that is not known is finished with {@code OUTCOME_UNSPECIFIED}. For one thread;
 * only {@link #close} may come from another.
 */
public final class Watch implements Iterator<WatchPositionResponse>, Iterable<WatchPositionResponse>, AutoCloseable {
    private final HeadwayQueue queue;
    private final boolean attended;
    private final Map<String, Instant> left = new HashMap<>(); // and of when is what was told of each last
    private final Deque<WatchPositionResponse> ready = new ArrayDeque<>();
    private final Runnable end = this::close;
    private final long giveUpAt;
    private Timestamp lastAsOf; // of anything; null: nothing was told yet
    private Iterator<WatchPositionResponse> stream; // null: none is open
    private int failures;
    private volatile CancellableContext context;
    private volatile boolean isClosed;

    Watch(HeadwayQueue queue, Collection<String> ids, boolean attended) {
        this.queue = queue;
        this.attended = attended;
        ids.forEach(id -> left.put(id, Instant.MIN));
        giveUpAt = System.nanoTime() + queue.headway.callTimeout().toNanos();
        queue.headway.onClose(end);
    }

    /**
     * Waits for the next news, however long that takes.
     *
     * @return false when the last message is finished, or the watch closed
     * @throws HeadwayException QUEUE_NOT_FOUND, or what is wrong with the ids; what passes by itself only if nothing
     *     was told within the call timeout
     */
    @Override
    public boolean hasNext() {
        while (ready.isEmpty() && !left.isEmpty() && !isClosed) {
            try {
                if (stream == null) {
                    open();
                }
                if (!stream.hasNext()) {
                    throw Status.UNAVAILABLE.withDescription("it ended before its last news").asRuntimeException();
                }
                hear(stream.next());
            } catch (StatusRuntimeException error) {
                stream = null;
                fail(HeadwayException.from(error));
            }
        }
        return !ready.isEmpty();
    }

    /**
     * The next news: the place of a message that waits or is delayed, that it is leased and how far the work is, or its
     * end.
     *
     * @return as the service told it
     */
    @Override
    public WatchPositionResponse next() {
        if (!hasNext()) {
            throw new NoSuchElementException();
        }
        return ready.remove();
    }

    /**
     * The watch itself, for a loop: what was told once is not told again.
     *
     * @return this
     */
    @Override
    public Iterator<WatchPositionResponse> iterator() {
        return this;
    }

    /** Ends the watch. Who waits for news is told that there is none. */
    @Override
    public void close() {
        isClosed = true;
        queue.headway.forget(end);
        var opened = context;
        if (opened != null) {
            opened.cancel(null);
        }
    }

    private void open() {
        var messages = MessageIds.newBuilder().addAllIds(left.keySet()).setAttended(attended);
        var request = WatchPositionRequest.newBuilder().setQueue(queue.name()).setMessages(messages).build();
        var rpc = QueueServiceGrpc.getWatchPositionMethod();
        var opened = Context.current().withCancellation();
        context = opened;
        if (isClosed) {
            opened.cancel(null); // it was closed meanwhile
        }
        opened.run(() -> stream = ClientCalls.blockingServerStreamingCall(
                queue.headway.channel(), rpc, CallOptions.DEFAULT, request));
    }

    private void hear(WatchPositionResponse told) {
        failures = 0;
        var id = told.hasFinished() ? told.getFinished().getId()
                : told.hasLeased() ? told.getLeased().getId() : told.getPosition().getId();
        var asOf = Spans.read(told.getAsOf());
        if (!left.containsKey(id) || (!told.hasFinished() && asOf.isBefore(left.get(id)))) {
            return;
        }
        if (told.hasAsOf()) {
            lastAsOf = told.getAsOf();
        }
        if (told.hasFinished()) {
            left.remove(id);
        } else {
            left.put(id, asOf);
        }
        ready.add(told);
        if (left.isEmpty()) {
            close();
        }
    }

    private void fail(HeadwayException error) {
        if (isClosed) {
            return;
        }
        boolean hasNoQueue =
                error.is(ErrorReason.ERROR_REASON_QUEUE_NOT_FOUND, ErrorReason.ERROR_REASON_QUEUE_DELETED);
        if (lastAsOf != null && hasNoQueue) {
            left.keySet().forEach(id -> ready.add(deleted(id))); // the queue was there and is no more
            left.clear();
            close();
            return;
        }
        var pause = Repeating.pauseAfter(++failures, error);
        boolean isOver = lastAsOf == null && System.nanoTime() + pause.toNanos() >= giveUpAt;
        if (isOver || !error.isPassing() || Thread.currentThread().isInterrupted()) {
            close();
            throw error;
        }
        Repeating.sleep(pause);
    }

    private WatchPositionResponse deleted(String id) {
        var finished = Finished.newBuilder().setId(id).setOutcome(Outcome.OUTCOME_DELETED);
        return WatchPositionResponse.newBuilder().setAsOf(lastAsOf).setFinished(finished).build();
    }
}
