package dev.headway;

import com.google.protobuf.ByteString;
import dev.headway.v1.DescribeRequest;
import dev.headway.v1.GetRequest;
import dev.headway.v1.Message;
import dev.headway.v1.OnDuplicate;
import dev.headway.v1.PutRequest;
import dev.headway.v1.PutResponse;
import dev.headway.v1.PutResult;
import dev.headway.v1.QueueServiceGrpc;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;

/** One queue as its users see it. A handle made by {@link Headway#queue}; safe for many threads. */
public final class HeadwayQueue {
    private static final boolean HAS_TRACES = hasTraces();

    final Headway headway;
    final Repeating repeating;
    private final String name;
    private volatile Duration policyLease;

    HeadwayQueue(Headway headway, String name) {
        this.headway = headway;
        this.name = name;
        this.repeating = new Repeating(headway);
    }

    /**
     * The queue's name.
     *
     * @return as it was given
     */
    public String name() {
        return name;
    }

    /**
     * Puts one message that is only a payload at the tail of the line; does not wait for room.
     *
     * @param payload the body
     * @return the message's id, ticket and place
     * @throws HeadwayException QUEUE_NOT_FOUND, QUEUE_FULL, QUEUE_CLOSED and so on
     */
    public PutResult put(byte[] payload) {
        return put(Message.newBuilder().setPayload(ByteString.copyFrom(payload)).build(), Duration.ZERO);
    }

    /**
     * Puts one message.
     *
     * @param message the message
     * @param wait how long to wait for room, 0 to 1 h
     * @return the message's id, ticket and place
     * @throws HeadwayException as {@link #put(PutRequest)}
     */
    public PutResult put(Message message, Duration wait) {
        return put(PutRequest.newBuilder().addMessages(message).setWait(Spans.write(wait)).build()).getResults(0);
    }

    /**
     * Puts a batch, and puts it again if the service was not there: if nothing happened, or if every message carries an
     * id. What a first try accepted whose answer was lost is then answered {@code deduplicated}; {@code body_differs}
     * says that another message had the id.
     *
     * @param request the batch; its {@code queue} is filled in
     * @return one result for each message, in order; one that was refused has its {@code error}
     * @throws HeadwayException if every message was refused for the same reason, or if nothing can be said of any
     */
    public PutResponse put(PutRequest request) {
        return send(prepare(request));
    }

    /**
     * Puts a batch as {@link #put(PutRequest)} does, and does not wait for the answer.
     *
     * @param request the batch; its {@code queue} is filled in
     * @return what {@code put} answers or throws; cancelling it does not cancel the call
     */
    public CompletableFuture<PutResponse> putAsync(PutRequest request) {
        var prepared = prepare(request); // here, where the caller's span is current
        return CompletableFuture.supplyAsync(() -> send(prepared), headway.threads);
    }

    /**
     * Leases the message at the head of the line, for as long as the queue's policy says, and keeps the lease alive
     * until it is closed.
     *
     * @param wait how long to wait for a message, 0 to 1 h
     * @return the lease, to be closed; empty if no message came
     * @throws HeadwayException QUEUE_NOT_FOUND, QUEUE_DRAINED, QUEUE_PAUSED and so on
     */
    public Optional<Lease> lease(Duration wait) {
        return lease(wait, policyLease());
    }

    /**
     * Leases the message at the head of the line, and keeps the lease alive until it is closed.
     *
     * @param wait how long to wait for a message, 0 to 1 h
     * @param span how long the lease lasts if nothing extends it, as when this process dies: 100 ms to 12 h
     * @return the lease, to be closed; empty if no message came
     * @throws HeadwayException QUEUE_NOT_FOUND, QUEUE_DRAINED, QUEUE_PAUSED and so on
     */
    public Optional<Lease> lease(Duration wait, Duration span) {
        return fetch(wait, span, newAttemptId(), false);
    }

    /**
     * Works through the queue until it is drained or the worker is stopped, with leases as long as the policy says.
     *
     * @param concurrency how many messages to work on at a time, at least 1
     * @param handler the work; called by many threads at once
     * @return the worker, which has begun; to be closed
     */
    public Worker work(int concurrency, Handler handler) {
        return new Worker(this, concurrency, null, handler);
    }

    /**
     * Works through the queue until it is drained or the worker is stopped.
     *
     * @param concurrency how many messages to work on at a time, at least 1
     * @param span how long a lease lasts if nothing extends it, as when this process dies: 100 ms to 12 h
     * @param handler the work; called by many threads at once
     * @return the worker, which has begun; to be closed
     */
    public Worker work(int concurrency, Duration span, Handler handler) {
        return new Worker(this, concurrency, span, handler);
    }

    /**
     * Watches messages: where they stand, how far the work on them is, and how they end.
     *
     * @param ids the messages' ids, 1 to 10,000, each once
     * @return the watch, to be closed
     */
    public Watch watch(String... ids) {
        return watch(List.of(ids), false);
    }

    /**
     * Watches messages: where they stand, how far the work on them is, and how they end.
     *
     * @param ids the messages' ids, 1 to 10,000, each once
     * @param attended whoever stops watching withdraws those that still wait; a connection that breaks does so, too
     * @return the watch, to be closed
     */
    public Watch watch(Collection<String> ids, boolean attended) {
        return new Watch(this, ids, attended);
    }

    /** How long a lease lasts by the policy, as it was when this handle first asked. */
    Duration policyLease() {
        if (policyLease == null) {
            var request = DescribeRequest.newBuilder().setQueue(name).build();
            var told = repeating.call(QueueServiceGrpc.getDescribeMethod(), request);
            policyLease = Spans.read(told.response().getQueue().getPolicy().getLease());
        }
        return policyLease;
    }

    /** Leases one message; a Get of the same name gives what an earlier one gave whose answer was lost. */
    Optional<Lease> fetch(Duration wait, Duration span, String attemptId, boolean isAgain) {
        var request = GetRequest.newBuilder()
                .setQueue(name)
                .setWait(Spans.write(wait))
                .setLease(Spans.write(span))
                .setAttemptId(attemptId)
                .build();
        var answer = repeating.call(QueueServiceGrpc.getGetMethod(), request);
        boolean isOld = isAgain || answer.isAgain();
        return answer.response().getDeliveriesList().stream()
                .findFirst()
                .map(delivery -> new Lease(this, delivery, span, isOld));
    }

    static String newAttemptId() {
        return UUID.randomUUID().toString();
    }

    private PutRequest prepare(PutRequest request) {
        var builder = request.toBuilder().setQueue(name);
        if (HAS_TRACES) {
            builder.clearMessages();
            request.getMessagesList().forEach(message -> builder.addMessages(Traces.inject(message)));
        }
        return builder.build();
    }

    // After a lost answer the repeat says KEEP instead of REJECT, so that what the first try accepted is not refused.
    private PutResponse send(PutRequest request) {
        boolean isIdempotent = request.getMessagesList().stream().noneMatch(message -> message.getId().isEmpty());
        boolean isReplacing = request.getOnDuplicate() == OnDuplicate.ON_DUPLICATE_REPLACE;
        return repeating
                .call(QueueServiceGrpc.getPutMethod(), request, isIdempotent, lost -> isReplacing
                        ? lost
                        : lost.toBuilder().setOnDuplicate(OnDuplicate.ON_DUPLICATE_KEEP).build())
                .response();
    }

    private static boolean hasTraces() {
        try {
            Class.forName("io.opentelemetry.api.trace.Span");
            return true;
        } catch (ClassNotFoundException error) {
            return false;
        }
    }
}
