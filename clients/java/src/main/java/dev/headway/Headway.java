package dev.headway;

import static java.util.concurrent.TimeUnit.NANOSECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;

import com.google.protobuf.Message;
import dev.headway.v1.AdminServiceGrpc;
import dev.headway.v1.AdminServiceGrpc.AdminServiceBlockingStub;
import dev.headway.v1.QueueServiceGrpc;
import dev.headway.v1.QueueServiceGrpc.QueueServiceBlockingStub;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ChannelCredentials;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ClientInterceptors;
import io.grpc.ConnectivityState;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.MethodDescriptor;
import io.grpc.MethodDescriptor.MethodType;
import io.grpc.NameResolverRegistry;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ClientCalls;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * A connection to the service, and the queues seen through it. Safe for many threads; one for each process is enough.
 *
 * <p>It connects with the first call and not before, spreads calls over all addresses in turn, and finds its way back
 * when the service was away. Calls that are safe to send again are, if the service is not there: see {@code README.md}.
 *
 * <p>Calls block their thread. Interrupting it cancels the call, which then fails with the code {@code CANCELLED}.
 */
public final class Headway implements AutoCloseable {
    /** The service's address if neither the program nor the environment names one. */
    public static final String DEFAULT_ADDRESS = "127.0.0.1:7420";

    /** The variable of the environment that holds the addresses, comma separated, if the program names none. */
    public static final String ADDRESS_VARIABLE = "HEADWAY_ADDRESS";

    private static final int MOST_RESPONSE_BYTES = 64 * 1024 * 1024;
    private static final Duration CALL_TIMEOUT = Duration.ofSeconds(10);
    private static final long CLOSE_SECONDS = 5;

    // Calls that gRPC may send again by itself: they do no harm when done twice, and their answer says the same. Put,
    // Get, Ack, Delay and Extend are repeated by Repeating, which can tell whether an earlier try may have taken
    // effect. Never repeated: Close and Delete (the second fails by rule), Withdraw, Purge and Repair (the second's
    // answer tells its own part only), and streams.
    private static final Map<String, List<String>> REPEATABLE = Map.of(
            QueueServiceGrpc.SERVICE_NAME, List.of("Create", "Describe", "List", "Update", "Peek"),
            AdminServiceGrpc.SERVICE_NAME, List.of("Check", "GetServerInfo", "ListDead", "Pause", "Resume"));

    static {
        NameResolverRegistry.getDefaultRegistry().register(new Addresses());
    }

    private final ScheduledThreadPoolExecutor timer = new ScheduledThreadPoolExecutor(1, daemons("headway-timer"));
    final ExecutorService threads = Executors.newCachedThreadPool(daemons("headway"));
    private final Set<Runnable> open = ConcurrentHashMap.newKeySet(); // what close() ends first
    private final ManagedChannel managed;
    private final Channel channel;
    private final Duration callTimeout;
    private volatile Future<?> reconnecting = CompletableFuture.completedFuture(null);

    private Headway(ManagedChannelBuilder<?> builder, Duration callTimeout) {
        this.callTimeout = callTimeout;
        managed = builder.defaultLoadBalancingPolicy("round_robin")
                .defaultServiceConfig(serviceConfig())
                .enableRetry()
                .keepAliveTime(20, SECONDS) // the service allows pings every 10 s and more
                .keepAliveTimeout(10, SECONDS)
                .maxInboundMessageSize(MOST_RESPONSE_BYTES)
                .build();
        channel = ClientInterceptors.intercept(managed, new ClientInterceptor() {
            @Override
            public <Q, R> ClientCall<Q, R> interceptCall(MethodDescriptor<Q, R> rpc, CallOptions told, Channel next) {
                // Streams have no deadline, for nobody knows how long the work takes: pings find out if the other side
                // is gone.
                boolean needsOne = told.getDeadline() == null && rpc.getType() == MethodType.UNARY;
                var options = needsOne ? told.withDeadlineAfter(callTimeout.toNanos(), NANOSECONDS) : told;
                return next.newCall(rpc, options);
            }
        });
        timer.setRemoveOnCancelPolicy(true); // most leases end before they are to be extended
        seeToConnection();
    }

    /**
     * A client of the service at the environment's {@code HEADWAY_ADDRESS}, or {@code 127.0.0.1:7420}.
     *
     * @return the client, to be closed
     */
    public static Headway connect() {
        return builder().build();
    }

    /**
     * A client of the service at these addresses.
     *
     * @param addresses each {@code host:port}, where a host may be a DNS name with many addresses; one alone may be any
     *     gRPC target
     * @return the client, to be closed
     */
    public static Headway connect(String... addresses) {
        return builder().addresses(addresses).build();
    }

    /**
     * Begins a client with other settings.
     *
     * @return a builder with the defaults
     */
    public static Builder builder() {
        return new Builder();
    }

    /**
     * A handle on the queue of this name; calls nothing, and the queue need not exist.
     *
     * @param name the queue's name
     * @return the handle
     */
    public HeadwayQueue queue(String name) {
        return new HeadwayQueue(this, name);
    }

    /**
     * The generated stub for everything about queues, as it is. A call without a deadline gets the call timeout; the
     * service cuts a longer {@code wait} short.
     *
     * @return the blocking stub; it throws {@link StatusRuntimeException}, see {@link #call} and {@link
     *     HeadwayException#from(Throwable)}
     */
    public QueueServiceBlockingStub queues() {
        return QueueServiceGrpc.newBlockingStub(channel);
    }

    /**
     * The generated stub for what operators do, as it is. Deadlines are as those of {@link #queues()}.
     *
     * @return the blocking stub; it throws {@link StatusRuntimeException}, see {@link #call}
     */
    public AdminServiceBlockingStub admin() {
        return AdminServiceGrpc.newBlockingStub(channel);
    }

    /**
     * The channel, for stubs of other kinds. Deadlines are as those of {@link #queues()}.
     *
     * @return the channel that every call goes through
     */
    public Channel channel() {
        return channel;
    }

    /**
     * Makes one call with its error typed, and with time for the {@code wait} that its request asks for: {@code
     * headway.call(QueueServiceGrpc.getDescribeMethod(), request)}.
     *
     * @param <Q> what it asks
     * @param <R> what it answers
     * @param rpc the call
     * @param request what to ask
     * @return its answer
     * @throws HeadwayException if it failed
     */
    public <Q extends Message, R> R call(MethodDescriptor<Q, R> rpc, Q request) {
        return call(rpc, request, callTimeout.plus(Repeating.waitOf(request)));
    }

    <Q, R> R call(MethodDescriptor<Q, R> rpc, Q request, Duration timeout) {
        try {
            var options = CallOptions.DEFAULT.withDeadlineAfter(timeout.toNanos(), NANOSECONDS);
            return ClientCalls.blockingUnaryCall(channel, rpc, options, request);
        } catch (StatusRuntimeException error) {
            throw HeadwayException.from(error);
        }
    }

    /**
     * Ends the connection: cancels what workers are doing, ends watches, gives back at once and for free what is
     * leased, and then cancels every other call. Takes 5 s at most.
     */
    @Override
    public void close() {
        var ends = open.stream().map(end -> CompletableFuture.runAsync(end, threads));
        CompletableFuture.allOf(ends.toArray(CompletableFuture[]::new))
                .completeOnTimeout(null, CLOSE_SECONDS, SECONDS)
                .join();
        managed.shutdownNow();
        threads.shutdownNow();
        timer.shutdownNow();
    }

    Duration callTimeout() {
        return callTimeout;
    }

    /** Has this run by close(), unless it is forgotten before. */
    void onClose(Runnable end) {
        open.add(end);
    }

    void forget(Runnable end) {
        open.remove(end);
    }

    /** Does something quick in a while, unless it is cancelled or the client closed before. */
    Future<?> later(Duration pause, Runnable work) {
        try {
            return timer.schedule(work, pause.toNanos(), NANOSECONDS);
        } catch (RejectedExecutionException closed) {
            return CompletableFuture.completedFuture(null);
        }
    }

    // gRPC for Java waits up to two minutes before it connects again, and has no setting for that.
    private void seeToConnection() {
        managed.notifyWhenStateChanged(managed.getState(false), this::seeToConnection);
        reconnecting.cancel(false);
        reconnectSoon(1);
    }

    private void reconnectSoon(int failures) {
        if (managed.getState(false) == ConnectivityState.TRANSIENT_FAILURE) {
            reconnecting = later(Repeating.backoff(failures), () -> {
                managed.resetConnectBackoff();
                reconnectSoon(failures + 1);
            });
        }
    }

    private static Map<String, ?> serviceConfig() {
        var names = REPEATABLE.entrySet().stream()
                .flatMap(service -> service.getValue().stream()
                        .map(method -> Map.of("service", service.getKey(), "method", method)))
                .toList();
        var retryPolicy = Map.of(
                "maxAttempts", 4.0,
                "initialBackoff", "0.1s",
                "maxBackoff", "2s",
                "backoffMultiplier", 2.0,
                "retryableStatusCodes", List.of("UNAVAILABLE"));
        return Map.of("methodConfig", List.of(Map.of("name", names, "retryPolicy", retryPolicy)));
    }

    private static ThreadFactory daemons(String name) {
        var numbers = new AtomicInteger();
        return work -> {
            var thread = new Thread(work, name + "-" + numbers.incrementAndGet());
            thread.setDaemon(true);
            return thread;
        };
    }

    /** Settings of a client. */
    public static final class Builder {
        private List<String> addresses = List.of();
        private ChannelCredentials credentials = InsecureChannelCredentials.create();
        private Duration callTimeout = CALL_TIMEOUT;

        private Builder() {}

        /**
         * Where the service is.
         *
         * @param addresses as in {@link Headway#connect(String...)}; none: as in {@link Headway#connect()}
         * @return this builder
         */
        public Builder addresses(String... addresses) {
            this.addresses = List.of(addresses);
            return this;
        }

        /**
         * How to make sure who is at the other side.
         *
         * @param credentials for example {@link io.grpc.TlsChannelCredentials}; default plain text
         * @return this builder
         */
        public Builder credentials(ChannelCredentials credentials) {
            this.credentials = Objects.requireNonNull(credentials);
            return this;
        }

        /**
         * How long a call may take beyond the {@code wait} that it asks for.
         *
         * @param callTimeout default 10 s
         * @return this builder
         */
        public Builder callTimeout(Duration callTimeout) {
            this.callTimeout = Objects.requireNonNull(callTimeout);
            return this;
        }

        /**
         * Makes the client.
         *
         * @return the client, to be closed
         */
        public Headway build() {
            var named = addresses;
            if (named.isEmpty()) {
                var told = System.getenv(ADDRESS_VARIABLE);
                named = List.of((told == null || told.isEmpty() ? DEFAULT_ADDRESS : told).split(","));
            }
            return new Headway(Grpc.newChannelBuilder(Addresses.target(named), credentials), callTimeout);
        }
    }
}
