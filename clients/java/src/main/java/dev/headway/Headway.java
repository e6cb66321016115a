package dev.headway;

import dev.headway.v1.*;
import io.grpc.*;
import io.grpc.Status.Code;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * A connection to the service: a gRPC channel, so that the generated stubs are made of it, as {@code
 * QueueServiceGrpc.newBlockingStub(headway)}. Safe for many threads; one for each process is enough.
 *
 * <p>It connects with the first call and not before, spreads calls over all addresses in turn, and finds its way back
 * when the service was away. A unary call of a stub that has no deadline gets the call timeout, whatever it asks to
 * wait; streams have none, for nobody knows how long the work takes: pings find out if the other side is gone.
 *
 * <p>Calls block their thread. Interrupting it, or the end of its gRPC context, cancels the call, which then fails with
 * the code {@code CANCELLED}. What a lease brought in that moment is given back, which takes 5 s at most. Calls of a
 * {@link Lease} go on when the context ends: what was done is acked, and what was not is given back.
 */
public final class Headway extends Channel implements AutoCloseable {
    static final System.Logger LOG = System.getLogger("dev.headway");

    // They do no harm when done twice. A Delay that was done answers STALE or GONE.
    private static final Set<String> REPEATABLE = Set.of(("Ack Check Create Delay Describe Extend GetServerInfo List "
            + "ListDead ListLeased Pause Peek Resume Update").split(" "));

    // What does not pass by itself unless it says when to come again; with any other code the service is away, or a
    // foreign client holds a role. RESOURCE_EXHAUSTED without that is gRPC's own word for what is too large. Those of
    // callers end what was served, too, when a token expires or a grant changes: the token of now may have it go on.
    private static final Set<Code> OF_CALLERS = Set.of(Code.UNAUTHENTICATED, Code.PERMISSION_DENIED),
            LASTING = Set.of(Code.NOT_FOUND, Code.INVALID_ARGUMENT, Code.UNIMPLEMENTED, Code.RESOURCE_EXHAUSTED);

    // Answers to a repeat that tell what became of an earlier try, too; others refuse a call without a look.
    private static final Set<Code> TELLING = Set.of(Code.NOT_FOUND, Code.ALREADY_EXISTS, Code.INVALID_ARGUMENT);

    final ScheduledThreadPoolExecutor extenders = new ScheduledThreadPoolExecutor(16); // threads, when needed
    final Duration callTimeout;
    private final List<ManagedChannel> channels;
    private final AtomicInteger turn = new AtomicInteger();

    /**
     * A client of the service at these addresses, in plain text.
     *
     * @param callTimeout how long a call may take beyond what it asks the service to wait
     * @param addresses see the other constructor
     */
    public Headway(Duration callTimeout, String... addresses) {
        this(callTimeout, InsecureChannelCredentials.create(), addresses);
    }

    /**
     * A client of the service at these addresses, by TLS, with a token, or both.
     *
     * @param callTimeout how long a call may take beyond what it asks the service to wait
     * @param credentials as gRPC has them: {@code TlsChannelCredentials}, and {@code CompositeChannelCredentials} of
     *     them and {@code CallCredentials}, which give each call its bearer token
     * @param addresses each {@code host:port}, where a host may be a DNS name with many addresses, or another gRPC
     *     target, and blanks around it do not count; none: those of the environment's {@code HEADWAY_ADDRESS}, comma
     *     separated, else {@code 127.0.0.1:7420}
     */
    public Headway(Duration callTimeout, ChannelCredentials credentials, String... addresses) {
        this.callTimeout = callTimeout;
        var told = addresses(System.getenv().getOrDefault("HEADWAY_ADDRESS", ""));
        channels = Arrays.stream(addresses.length == 0 ? told : addresses).map(it -> channel(it, credentials)).toList();
        extenders.setRemoveOnCancelPolicy(true);
    }

    /**
     * Puts a batch, and puts it again if the service was not there and every message has an id: what a try accepted
     * whose answer was lost is then answered {@code deduplicated}, and {@code body_differs} says that another message
     * had the id. The current span goes into the headers, where the application has OpenTelemetry.
     *
     * @param queue the queue's name
     * @param wait how long to wait for room, 0 to 1 h
     * @param messages what to put
     * @return one result for each message, in order; one that was refused has its {@code error}
     * @throws HeadwayException if every message was refused for the same reason, or if nothing can be said of any
     */
    public List<PutResult> put(String queue, Duration wait, Message... messages) {
        var put = PutRequest.newBuilder().setQueue(queue).setWait(wire(wait));
        try {
            Arrays.stream(messages).map(Traces::inject).forEach(put::addMessages);
        } catch (NoClassDefFoundError absent) { // the application does without OpenTelemetry
            put.addAllMessages(List.of(messages));
        }
        boolean isNamed = Arrays.stream(messages).noneMatch(message -> message.getId().isEmpty());
        var again = isNamed ? put.clone().setOnDuplicate(OnDuplicate.ON_DUPLICATE_KEEP).build() : null;
        var answer = call(QueueServiceGrpc.getPutMethod(), put.build(), again, callTimeout, new AtomicInteger());
        return answer.getResultsList();
    }

    /**
     * Leases the message at the head of the line, and keeps the lease alive until it is closed.
     *
     * @param queue the queue's name
     * @param wait how long to wait for a message, 0 to 1 h
     * @param span how long the lease lasts if nothing extends it, as when this process dies: 100 ms to 12 h, and
     *     no longer than the service's {@code max_lease}
     * @return the lease, to be closed; empty if no message came
     * @throws HeadwayException QUEUE_NOT_FOUND, QUEUE_DRAINED, QUEUE_PAUSED and so on
     */
    public Optional<Lease> lease(String queue, Duration wait, Duration span) {
        return lease(GetRequest.newBuilder().setQueue(queue).setWait(wire(wait)).setLease(wire(span)), false);
    }

    /**
     * By a Get that has a name: a repeat gives what a lost answer gave. {@code isOld}: the name that it has is that of
     * one that was not answered, and may have leased something; else it gets one of its own.
     */
    Optional<Lease> lease(GetRequest.Builder asked, boolean isOld) {
        var get = (isOld ? asked : asked.setAttemptId(UUID.randomUUID().toString())).build();
        var failures = new AtomicInteger();
        try {
            var told = call(QueueServiceGrpc.getGetMethod(), get, get, callTimeout, failures).getDeliveriesList();
            return told.stream().findFirst().map(it -> new Lease(this, get, it, isOld || failures.get() > 0));
        } catch (HeadwayException error) {
            if (Thread.currentThread().isInterrupted() || Context.current().isCancelled()) {
                // It may have been answered in that moment: what it leased comes by its name, and goes back. That is a
                // thread's of its own, whose calls nothing cancels.
                Runnable giveBack = () -> lease(get.toBuilder().clearWait(), true).ifPresent(Lease::close);
                var done = CompletableFuture.runAsync(giveBack, work -> new Thread(work).start());
                done.exceptionally(failed -> null).completeOnTimeout(null, 5, TimeUnit.SECONDS).join();
            }
            throw error;
        }
    }

    /**
     * Makes one call with its error typed, and again if the service was not there and it does no harm when done twice.
     * It may take the call timeout beyond what it asks to wait, and each try of it half of what is left of that, or
     * of the call timeout, so that one whose answer does not come leaves time for another.
     *
     * @param <Q> what it asks
     * @param <R> what it answers
     * @param rpc the call, for example {@code QueueServiceGrpc.getDescribeMethod()}
     * @param request what to ask
     * @return its answer
     * @throws HeadwayException if it failed; that of a try which may have taken effect, unless a later answer tells
     *     what became of it
     */
    public <Q extends com.google.protobuf.Message, R> R call(MethodDescriptor<Q, R> rpc, Q request) {
        var again = REPEATABLE.contains(rpc.getBareMethodName()) ? request : null;
        return call(rpc, request, again, callTimeout, new AtomicInteger());
    }

    /**
     * Takes no longer than {@code limit} beyond what it asks to wait. {@code again}: what to ask once a try may have
     * taken effect; null: nothing, and the call is made once. Counts its {@code failures}. A Get that waits, and is
     * refused for who calls, is made once more, with the token of now.
     */
    <Q extends com.google.protobuf.Message, R> R call(
            MethodDescriptor<Q, R> rpc, Q request, Q again, Duration limit, AtomicInteger failures) {
        var field = request.getDescriptorForType().findFieldByName("wait");
        var wait = field == null ? wire(Duration.ZERO) : (com.google.protobuf.Duration) request.getField(field);
        long end = System.nanoTime() + limit.plusSeconds(wait.getSeconds()).plusNanos(wait.getNanos()).toNanos();
        HeadwayException lost = null; // of the last try that may have taken effect
        for (; ; failures.incrementAndGet()) {
            // An answer that does not come leaves time for another try, which may meet another host.
            long left = end - System.nanoTime();
            long idle = Math.max(0, left - limit.toNanos()); // of what it asks to wait
            long half = Math.min(left, idle + Math.max(Math.min(left - idle, callTimeout.toNanos()) / 2, (long) 1e9));
            var options = CallOptions.DEFAULT.withDeadlineAfter(again == null ? left : half, TimeUnit.NANOSECONDS);
            try {
                return io.grpc.stub.ClientCalls.blockingUnaryCall(this, rpc, options, lost == null ? request : again);
            } catch (StatusRuntimeException thrown) {
                var error = HeadwayException.from(thrown);
                // FAILED_PRECONDITION refuses a Put as other codes any call: without a look at what an earlier try did.
                boolean isState = error.code() == Code.FAILED_PRECONDITION && !(request instanceof PutRequest);
                lost = isState || TELLING.contains(error.code()) ? null : error.isOutcomeUnknown() ? error : lost;
                // CANCELLED is gRPC's word for what a process that goes down, or is overrun, has not begun.
                boolean isSafe = again != null && (error.code() == Code.UNAVAILABLE || error.isOutcomeUnknown());
                // A Get, which is asked again as it is, may have waited until its token expired.
                boolean isWait = idle > 0 && again == request && OF_CALLERS.contains(error.code());
                pause(isSafe || isWait ? end - System.nanoTime() : 0, failures.get(), error, lost);
            }
        }
    }

    /**
     * Waits before the next try, doubling from 0.1 s to 3.2 s and never less than the service asks. Then connects at
     * once where a connection failed: gRPC alone waits up to two minutes. Throws what will not pass by itself, and
     * everything if that would take too long, this thread is interrupted, its context cancelled, or the connection
     * closed; if a try was {@code lost}, that one's error. Without {@code failures} it was served until now, which the
     * token of now may go on with.
     */
    void pause(long mostNanos, int failures, HeadwayException error, HeadwayException lost) {
        double ns = Math.max(error.retryAfter().toNanos(), (1 + Math.random()) * (50_000_000 << Math.min(failures, 5)));
        boolean isLasting = LASTING.contains(error.code()) || failures > 0 && OF_CALLERS.contains(error.code());
        boolean isEnded = Thread.currentThread().isInterrupted() || Context.current().isCancelled();
        if (ns >= mostNanos || isEnded || extenders.isShutdown() || isLasting && error.retryAfter().isZero()) {
            throw lost == null ? error : lost;
        }
        LOG.log(System.Logger.Level.WARNING, "{0}; trying again", error.getMessage());
        java.util.concurrent.locks.LockSupport.parkNanos((long) ns); // an interrupt ends it
        channels.forEach(ManagedChannel::resetConnectBackoff);
    }

    /**
     * Ends the connection, and cancels every call. Close leases, workers and watches before, as nested {@code try} do.
     */
    @Override
    public void close() {
        extenders.shutdownNow();
        channels.forEach(ManagedChannel::shutdownNow);
    }

    @Override
    public <Q, R> ClientCall<Q, R> newCall(MethodDescriptor<Q, R> rpc, CallOptions told) {
        boolean needsDeadline = told.getDeadline() == null && rpc.getType() == MethodDescriptor.MethodType.UNARY;
        var options = needsDeadline ? told.withDeadlineAfter(callTimeout) : told;
        var able = channels.stream().filter(it -> it.getState(true) != ConnectivityState.TRANSIENT_FAILURE).toList();
        var among = able.isEmpty() ? channels : able;
        return among.get(Math.floorMod(turn.getAndIncrement(), among.size())).newCall(rpc, options);
    }

    @Override
    public String authority() {
        return channels.get(0).authority();
    }

    static com.google.protobuf.Duration wire(Duration span) {
        return com.google.protobuf.Duration.newBuilder().setSeconds(span.getSeconds()).setNanos(span.getNano()).build();
    }

    /** What the environment says: empty counts as unset. */
    static String[] addresses(String told) {
        return (told.isBlank() ? "127.0.0.1:7420" : told).strip().split("[\\s,]+");
    }

    private static ManagedChannel channel(String address, ChannelCredentials credentials) {
        // Round robin over all that a DNS name has.
        var channel = Grpc.newChannelBuilder(address.strip(), credentials).defaultLoadBalancingPolicy("round_robin");
        // The service allows pings every 10 s and more.
        channel.keepAliveTime(20, TimeUnit.SECONDS).keepAliveTimeout(10, TimeUnit.SECONDS);
        return channel.maxInboundMessageSize(64 * 1024 * 1024).build(); // of one answer
    }
}
