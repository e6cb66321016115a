package dev.headway;

import dev.headway.v1.Message;
import dev.headway.v1.PutRequest;
import dev.headway.v1.PutResponse;
import dev.headway.v1.PutResult;

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
            headway.queue("q").put(new byte[] {7});
            var put = service.next(PutRequest.class).getMessages(0);
            if (!put.equals(Message.newBuilder().setPayload(put.getPayload()).build())) {
                throw new AssertionError("it was changed: " + put);
            }
        } catch (Exception error) {
            throw new AssertionError(error);
        }
    }
}
