package dev.headway;

import com.google.protobuf.Timestamp;
import java.time.Duration;
import java.time.Instant;

/** Carries Java's times onto the wire and back, exactly; the service judges ranges and rounds up to milliseconds. */
final class Spans {
    private Spans() {}

    static com.google.protobuf.Duration write(Duration span) {
        return com.google.protobuf.Duration.newBuilder().setSeconds(span.getSeconds()).setNanos(span.getNano()).build();
    }

    static Duration read(com.google.protobuf.Duration span) {
        return Duration.ofSeconds(span.getSeconds(), span.getNanos());
    }

    static Instant read(Timestamp instant) {
        return Instant.ofEpochSecond(instant.getSeconds(), instant.getNanos());
    }
}
