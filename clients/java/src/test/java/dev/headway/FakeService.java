package dev.headway;

import com.google.protobuf.Message;
import dev.headway.v1.AckRequest;
import dev.headway.v1.AckResponse;
import dev.headway.v1.DelayRequest;
import dev.headway.v1.DelayResponse;
import dev.headway.v1.Delivery;
import dev.headway.v1.ExtendRequest;
import dev.headway.v1.ExtendResponse;
import dev.headway.v1.GetRequest;
import dev.headway.v1.GetResponse;
import dev.headway.v1.PutRequest;
import dev.headway.v1.PutResponse;
import dev.headway.v1.QueueServiceGrpc.QueueServiceImplBase;
import dev.headway.v1.SettleResult;
import dev.headway.v1.Settled;
import dev.headway.v1.WatchPositionRequest;
import dev.headway.v1.WatchPositionResponse;
import io.grpc.Context;
import io.grpc.Deadline;
import io.grpc.InsecureServerCredentials;
import io.grpc.Server;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** A service on a port of this process that answers as a test tells it, and keeps what it was asked. */
final class FakeService extends QueueServiceImplBase implements AutoCloseable {
    static final Duration CALL_TIMEOUT = Duration.ofMinutes(1); // long: the machine may be busy with others

    static final Object SILENCE = new Object(); // a Get that waits, a stream that says nothing more

    private static final long TEST_SECONDS = 60;

    final BlockingQueue<Message> asked = new LinkedBlockingQueue<>();
    final BlockingQueue<Deadline> deadlines = new LinkedBlockingQueue<>();
    final Deque<Object> puts = new ArrayDeque<>(); // each a response or a Throwable; the last one stays
    final Deque<Object> gets = new ArrayDeque<>(); // likewise, but at the end a Get waits until it is cancelled
    volatile GetResponse inThatMoment = GetResponse.getDefaultInstance(); // what a Get without wait has leased
    final Deque<Object> acks = new ArrayDeque<>(); // likewise, but at the end an Ack is answered as ackSays has it
    final Deque<List<Object>> watches = new ArrayDeque<>(); // of each stream, what it tells
    volatile Settled ackSays = Settled.SETTLED_ACKED;
    volatile Settled delaySays = Settled.SETTLED_RELEASED;
    volatile Settled extendSays = Settled.SETTLED_EXTENDED;
    volatile boolean areAcksAnswered = true;
    volatile boolean isProgressAnswered = true;
    final AtomicInteger unanswered = new AtomicInteger(); // how many Extends are not
    private final Server server;

    FakeService() throws IOException {
        var anyPort = new InetSocketAddress("127.0.0.1", 0);
        var builder = NettyServerBuilder.forAddress(anyPort, InsecureServerCredentials.create());
        server = builder.addService(this).build().start();
    }

    Headway connect() {
        return new Headway(CALL_TIMEOUT, address());
    }

    String address() {
        return "127.0.0.1:" + server.getPort();
    }

    /** The next request of a kind; others before it are passed over. */
    <T extends Message> T next(Class<T> kind) throws InterruptedException {
        while (true) {
            var request = asked.poll(TEST_SECONDS, TimeUnit.SECONDS);
            if (request == null) {
                throw new AssertionError("no " + kind.getSimpleName() + " came");
            }
            if (kind.isInstance(request)) {
                return kind.cast(request);
            }
        }
    }

    static GetResponse delivery(String id) {
        var message = dev.headway.v1.Message.newBuilder().setId(id);
        var delivery = Delivery.newBuilder().setMessage(message).setLease("lease-of-" + id).setAttempt(1);
        return GetResponse.newBuilder().addDeliveries(delivery).build();
    }

    @Override
    public void put(PutRequest request, StreamObserver<PutResponse> answer) {
        note(request);
        say(puts.size() > 1 ? puts.remove() : puts.element(), answer);
    }

    @Override
    public void get(GetRequest request, StreamObserver<GetResponse> answer) {
        note(request);
        var told = request.hasWait() ? gets.poll() : inThatMoment;
        if (told != null && told != SILENCE) {
            say(told, answer);
        }
    }

    @Override
    public void ack(AckRequest request, StreamObserver<AckResponse> answer) {
        note(request);
        if (!areAcksAnswered) {
            return;
        }
        say(acks.isEmpty() ? AckResponse.newBuilder().addResults(settled(ackSays)).build() : acks.remove(), answer);
    }

    @Override
    public void delay(DelayRequest request, StreamObserver<DelayResponse> answer) {
        note(request);
        say(DelayResponse.newBuilder().addResults(settled(delaySays)).build(), answer);
    }

    @Override
    public void extend(ExtendRequest request, StreamObserver<ExtendResponse> answer) {
        note(request);
        if (unanswered.getAndDecrement() <= 0 && (isProgressAnswered || !request.hasProgress())) {
            say(ExtendResponse.newBuilder().addResults(settled(extendSays)).build(), answer);
        }
    }

    @Override
    public void watchPosition(WatchPositionRequest request, StreamObserver<WatchPositionResponse> answer) {
        note(request);
        for (var told : watches.remove()) {
            if (told instanceof Throwable error) {
                answer.onError(error);
                return;
            }
            if (told == SILENCE) {
                return; // and the stream stays open
            }
            answer.onNext((WatchPositionResponse) told);
        }
        answer.onCompleted();
    }

    @Override
    public void close() {
        server.shutdownNow();
    }

    private void note(Message request) {
        var deadline = Context.current().getDeadline();
        if (deadline != null) {
            deadlines.add(deadline);
        }
        asked.add(request);
    }

    private static SettleResult settled(Settled said) {
        return SettleResult.newBuilder().setSettled(said).build();
    }

    @SuppressWarnings("unchecked") // a test tells what fits
    private static <R> void say(Object told, StreamObserver<R> answer) {
        if (told instanceof Throwable error) {
            answer.onError(error);
        } else {
            answer.onNext((R) told);
            answer.onCompleted();
        }
    }
}
