package dev.headway.driver;

import com.google.gson.JsonObject;
import com.google.protobuf.Message;
import dev.headway.Headway;
import dev.headway.HeadwayException;
import dev.headway.Lease;
import dev.headway.Traces;
import dev.headway.Watch;
import dev.headway.Worker;
import dev.headway.v1.State;
import dev.headway.v1.WatchPositionResponse;
import io.grpc.MethodDescriptor;
import io.opentelemetry.api.trace.propagation.W3CTraceContextPropagator;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.FutureTask;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;

/** What the runner names by a handle, until it is closed. */
interface Handles extends AutoCloseable {
    @Override
    void close();

    /** What a lease's work throws when it is told to fail. */
    final class Failed extends Exception {
        private static final long serialVersionUID = 1;

        Failed(String reason) {
            super(reason);
        }
    }

    /** A stream of the generated kind. */
    record Stream(MethodDescriptor<Message, Message> rpc, Reading.OfCall reading) implements Handles {
        @Override
        public void close() {
            reading.requests().cancel("closed", null);
        }
    }

    /** A watch of the layer. */
    record Watching(Watch watch, Reading reading) implements Handles {
        static Watching begin(Watch watch) {
            var reading = new Reading();
            Driver.THREADS.execute(() -> {
                try {
                    watch.forEachRemaining(told -> reading.tell(Json.of("event", event(told))));
                    reading.end();
                } catch (HeadwayException error) {
                    reading.fail(error);
                }
            });
            return new Watching(watch, reading);
        }

        @Override
        public void close() {
            watch.close();
        }

        private static JsonObject event(WatchPositionResponse told) {
            JsonObject event;
            if (told.hasPosition()) {
                event = Json.write(told.getPosition());
                boolean isDelayed = told.getPosition().getState() == State.STATE_DELAYED;
                event.addProperty("kind", isDelayed ? "delayed" : "position");
            } else if (told.hasLeased()) {
                event = Json.write(told.getLeased());
                event.addProperty("kind", "leased");
            } else {
                event = Json.write(told.getFinished());
                event.addProperty("kind", "finished");
            }
            return event;
        }
    }

    /** A lease's scope, open until it is told how to end. */
    record Held(Lease lease, CompletableFuture<JsonObject> end, FutureTask<Void> scope) implements Handles {
        static Held enter(Lease lease) {
            var end = new CompletableFuture<JsonObject>();
            var scope = new FutureTask<Void>(() -> {
                lease.run(held -> finish(end.get()));
                return null;
            });
            Driver.THREADS.execute(scope);
            return new Held(lease, end, scope);
        }

        @Override
        public void close() {
            scope.cancel(true);
            lease.close(); // waits for what the scope does at its own end
        }
    }

    /** A worker, whose handlers wait until they are told how to end. */
    final class Working implements Handles {
        private final String name;
        private final Consumer<JsonObject> tell;
        private final Map<String, CompletableFuture<JsonObject>> handling = new ConcurrentHashMap<>();
        private final AtomicInteger count = new AtomicInteger();
        private final Worker worker;

        Working(Headway client, JsonObject request, Consumer<JsonObject> tell) {
            name = request.get("handle").getAsString();
            this.tell = tell;
            int concurrency = request.get("concurrency").getAsInt();
            var span = Json.span(request, "lease_ms", Driver.LEASE);
            worker = new Worker(client, request.get("queue").getAsString(), concurrency, span, this::handle);
            worker.done().whenComplete((nothing, error) -> {
                var ended = event("ended");
                ended.add("error", error == null ? null : Json.error(cause(error)));
                tell.accept(ended);
            });
        }

        void finish(JsonObject request) {
            handling.remove(request.get("lease").getAsString()).complete(request);
        }

        void stop() {
            worker.stop();
        }

        @Override
        public void close() {
            worker.close();
        }

        private byte[] handle(Lease lease) throws Exception {
            var key = name + "/" + count.incrementAndGet();
            var told = new CompletableFuture<JsonObject>();
            handling.put(key, told);
            var event = event("handling");
            event.addProperty("lease", key);
            event.asMap().putAll(told(lease).asMap());
            tell.accept(event);
            try {
                return Handles.finish(told.get());
            } catch (InterruptedException error) {
                var cancelled = event("cancelled");
                cancelled.addProperty("lease", key);
                tell.accept(cancelled);
                throw error;
            }
        }

        private JsonObject event(String kind) {
            var event = new JsonObject();
            event.addProperty("event", kind);
            event.addProperty("handle", name);
            return event;
        }
    }

    /** The result that the work is told to have. Throws if it is told to fail. */
    private static byte[] finish(JsonObject told) throws Failed {
        if (told.get("how").getAsString().equals("fail")) {
            throw new Failed(Json.text(told, "reason", ""));
        }
        return Json.bytes(told, "result");
    }

    static Throwable cause(Throwable error) {
        return error.getCause() == null || error instanceof HeadwayException ? error : error.getCause();
    }

    /** What the runner is told of a lease. */
    static JsonObject told(Lease lease) {
        var told = Json.of("message", Json.write(lease.delivery().getMessage()));
        told.addProperty("attempt", lease.delivery().getAttempt());
        told.addProperty("ticket", String.valueOf(lease.delivery().getTicket()));
        var carrier = new HashMap<String, String>();
        var context = Traces.context(lease.delivery().getMessage());
        W3CTraceContextPropagator.getInstance().inject(context, carrier, Map::put);
        told.addProperty("traceparent", carrier.get("traceparent"));
        return told;
    }
}
