package dev.headway;

import dev.headway.v1.*;
import io.grpc.*;
import java.util.*;
import java.util.concurrent.*;

/**
 * Where messages are, at once and then whenever that changes, until the last is finished.
 *
 * <p>{@link #hasNext} blocks for the next news. When the stream breaks, or says nothing within the call timeout, it is
 * opened anew, for as long as the service is away, and then tells how a message ended as long as that is remembered.
 * One that was served until its token expired is opened once more, with the token of now. A message that is not known
 * is finished with {@code OUTCOME_UNSPECIFIED}. For one thread; only {@link #close} may come from another.
 */
public final class Watch implements Iterator<WatchPositionResponse>, AutoCloseable {
    private final Headway headway;
    private final WatchPositionRequest.Builder request = WatchPositionRequest.newBuilder();
    private final Set<String> left; // those without a last word
    private final Context.CancellableContext context = Context.current().withCancellation();
    private Iterator<WatchPositionResponse> stream; // null: none is open
    private Future<?> patience; // until the stream's first answer, which comes at once
    private WatchPositionResponse ready; // null: nothing is

    /**
     * Watches messages.
     *
     * @param headway the connection
     * @param queue the queue's name
     * @param ids the messages' ids, 1 to 10,000
     * @param attended whoever stops watching withdraws those that still wait; a connection that breaks does so, too
     */
    public Watch(Headway headway, String queue, Set<String> ids, boolean attended) {
        this.headway = headway;
        request.setQueue(queue).getMessagesBuilder().setAttended(attended);
        left = new HashSet<>(ids);
    }

    /**
     * Waits for the next news, however long that takes.
     *
     * @return false when the last message is finished, or the watch closed
     * @throws HeadwayException QUEUE_NOT_FOUND, or what is wrong with the ids; never what passes by itself
     */
    @Override
    public boolean hasNext() {
        // 0 once there was an answer, and it goes on after that.
        for (int failures = patience == null ? 1 : 0; ready == null && !left.isEmpty() && !context.isCancelled(); ) {
            try {
                if (stream == null) {
                    request.getMessagesBuilder().clearIds().addAllIds(left);
                    var open = context.withCancellation();
                    long most = headway.callTimeout.toMillis();
                    patience = headway.extenders.schedule(() -> open.cancel(null), most, TimeUnit.MILLISECONDS);
                    open.run(() -> stream = QueueServiceGrpc.newBlockingStub(headway).watchPosition(request.build()));
                } else if (!stream.hasNext()) { // that is broken, although nothing says so
                    throw io.grpc.Status.UNAVAILABLE.withDescription("the stream ended early").asRuntimeException();
                } else {
                    patience.cancel(false);
                    ready = stream.next();
                    left.remove(ready.getFinished().getId()); // empty unless it is a last word
                }
            } catch (StatusRuntimeException thrown) {
                stream = null;
                if (!context.isCancelled()) {
                    headway.pause(Long.MAX_VALUE, failures++, HeadwayException.from(thrown), null);
                }
            }
        }
        return ready != null;
    }

    /**
     * The next news: the place of a message that waits or is delayed, that it is leased and how far the work is, or its
     * end.
     *
     * @return as the service told it
     */
    @Override
    public WatchPositionResponse next() {
        var told = hasNext() ? Optional.of(ready) : Optional.<WatchPositionResponse>empty();
        ready = null;
        return told.orElseThrow();
    }

    /** Ends the watch. Who waits for news is told that there is none. */
    @Override
    public void close() {
        context.cancel(null);
    }
}
