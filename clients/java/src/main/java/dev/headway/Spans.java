package dev.headway;

import com.google.protobuf.Timestamp;
import java.time.Duration;
import java.time.Instant;

/** Carries Java's times onto the wire and back, exactly; the service judges ranges and rounds up to milliseconds. */
final class Spans {
    private Spans() {}

    static com.google.protobuf.Duration write(Duration span) {
        // The wire wants both parts of one sign, Java has nanoseconds that only add.
        long seconds = span.getSeconds();
        int nanos = span.getNano();
        if (seconds < 0 && nanos > 0) {
            seconds += 1;
            nanos -= 1_000_000_000;
        }
        return com.google.protobuf.Duration.newBuilder().setSeconds(seconds).setNanos(nanos).build();
    }

    static Timestamp write(Instant instant) {
        return Timestamp.newBuilder()
                .setSeconds(instant.getEpochSecond())
                .setNanos(instant.getNano())
                .build();
    }

    static Duration read(com.google.protobuf.Duration span) {
        return Duration.ofSeconds(span.getSeconds(), span.getNanos());
    }

    static Instant read(Timestamp instant) {
        return Instant.ofEpochSecond(instant.getSeconds(), instant.getNanos());
    }
}
