package dev.headway;

import dev.headway.v1.Message;
import io.opentelemetry.api.trace.propagation.W3CTraceContextPropagator;
import io.opentelemetry.context.Context;
import io.opentelemetry.context.propagation.TextMapGetter;

/**
 * Carries the W3C trace context from who puts a message to who works on it, in the message's headers.
 *
 * <p>Needs {@code io.opentelemetry:opentelemetry-api}, on which this client does not depend. Where the application has
 * it, and puts while a span is current, the headers {@code traceparent} and {@code tracestate} are written by
 * themselves, unless the message has a {@code traceparent} already, or no room: beside 62 headers, or where it would be
 * larger than 1 MiB.
 */
public final class Traces {
    // What the service takes: so many headers, and by its default so many bytes in a message.
    private static final int MOST_HEADERS = 64;
    private static final int MOST_BYTES = 1 << 20;

    private static final TextMapGetter<Message> HEADERS = new TextMapGetter<>() {
        @Override
        public Iterable<String> keys(Message message) {
            return message.getHeadersMap().keySet();
        }

        @Override
        public String get(Message message, String key) {
            return message.getHeadersMap().get(key);
        }
    };

    private Traces() {}

    /**
     * The context that the message was put in, to be the parent of the span of its work.
     *
     * @param message a message as it came
     * @return the current context with the span of whoever put the message; without it if the headers name none
     */
    public static Context context(Message message) {
        return W3CTraceContextPropagator.getInstance().extract(Context.current(), message, HEADERS);
    }

    /**
     * The message with the current span in its headers, if there is one, the caller set none, and there is room: it must
     * not be refused for what its producer did not write.
     */
    static Message inject(Message message) {
        if (message.containsHeaders("traceparent")) {
            return message;
        }
        var traced = message.toBuilder();
        W3CTraceContextPropagator.getInstance().inject(Context.current(), traced, Message.Builder::putHeaders);
        var made = traced.build();
        return made.getHeadersCount() <= MOST_HEADERS && made.getSerializedSize() <= MOST_BYTES ? made : message;
    }
}
