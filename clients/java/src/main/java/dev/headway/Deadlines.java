package dev.headway;

import com.google.protobuf.Message;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.TimeUnit;

/**
 * Gives each unary call that has none a deadline: a span beyond the {@code wait} that its request asks for.
 *
 * <p>Streams have none, for nobody knows how long the work takes: the channel's pings find out if the other side is
 * gone.
 */
record Deadlines(Duration callTimeout) implements ClientInterceptor {
    /** How long the request asks the service to wait. */
    static Duration waitOf(Object request) {
        return Optional.of(request)
                .filter(Message.class::isInstance)
                .map(Message.class::cast)
                .map(message -> {
                    var field = message.getDescriptorForType().findFieldByName("wait");
                    return field == null ? Duration.ZERO : Spans.read(
                            (com.google.protobuf.Duration) message.getField(field));
                })
                .filter(span -> !span.isNegative())
                .orElse(Duration.ZERO);
    }

    @Override
    public <Q, R> ClientCall<Q, R> interceptCall(MethodDescriptor<Q, R> method, CallOptions options, Channel next) {
        if (options.getDeadline() != null || !method.getType().clientSendsOneMessage()
                || !method.getType().serverSendsOneMessage()) {
            return next.newCall(method, options);
        }
        return new Later<>(method, options, next);
    }

    /** A call that begins with its request: only then is known how long it waits. */
    private final class Later<Q, R> extends ClientCall<Q, R> {
        private final MethodDescriptor<Q, R> method;
        private final CallOptions options;
        private final Channel next;
        private Listener<R> listener;
        private Metadata headers;
        private int requested;
        private ClientCall<Q, R> call;

        Later(MethodDescriptor<Q, R> method, CallOptions options, Channel next) {
            this.method = method;
            this.options = options;
            this.next = next;
        }

        @Override
        public void start(Listener<R> listener, Metadata headers) {
            this.listener = listener;
            this.headers = headers;
        }

        @Override
        public void request(int count) {
            if (call == null) {
                requested += count;
            } else {
                call.request(count);
            }
        }

        @Override
        public void sendMessage(Q message) {
            begin(callTimeout.plus(waitOf(message)));
            call.sendMessage(message);
        }

        @Override
        public void halfClose() {
            call.halfClose();
        }

        @Override
        public void cancel(String message, Throwable cause) {
            if (call == null) {
                begin(callTimeout);
            }
            call.cancel(message, cause);
        }

        private void begin(Duration timeout) {
            call = next.newCall(method, options.withDeadlineAfter(timeout.toNanos(), TimeUnit.NANOSECONDS));
            call.start(listener, headers);
            call.request(requested);
        }
    }
}
