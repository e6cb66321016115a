package dev.headway;

import com.google.protobuf.ByteString;
import dev.headway.v1.Message;
import dev.headway.v1.PutRequest;
import dev.headway.v1.PutResponse;
import dev.headway.v1.PutResult;
import java.time.Duration;

/** Puts a message where no OpenTelemetry is; PutTest has it made by a class loader of its own. */
public final class PutWithoutTraces implements Runnable {
    @Override
    public void run() {
        try {
            Class.forName("io.opentelemetry.api.trace.Span");
            throw new AssertionError("it is there");
        } catch (ClassNotFoundException expected) {
            // As it is to be.
        }
        try (var service = new FakeService(); var headway = service.connect()) {
            service.puts.add(PutResponse.newBuilder().addResults(PutResult.newBuilder()).build());
            var sent = Message.newBuilder().setPayload(ByteString.copyFromUtf8("seven")).build();
            headway.put("q", Duration.ZERO, sent);
            var put = service.next(PutRequest.class).getMessages(0);
            if (!put.equals(sent)) {
                throw new AssertionError("it was changed: " + put);
            }
        } catch (Exception error) {
            throw new AssertionError(error);
        }
    }
}
