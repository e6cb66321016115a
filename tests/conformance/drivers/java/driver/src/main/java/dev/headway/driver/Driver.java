package dev.headway.driver;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.protobuf.Message;
import dev.headway.Headway;
import dev.headway.HeadwayException;
import dev.headway.Watch;
import dev.headway.driver.Handles.Held;
import dev.headway.driver.Handles.Stream;
import dev.headway.driver.Handles.Watching;
import dev.headway.driver.Handles.Working;
import dev.headway.v1.AdminServiceGrpc;
import dev.headway.v1.QueueServiceGrpc;
import io.grpc.CallOptions;
import io.grpc.ChannelCredentials;
import io.grpc.CompositeChannelCredentials;
import io.grpc.InsecureChannelCredentials;
import io.grpc.MethodDescriptor;
import io.grpc.StatusRuntimeException;
import io.grpc.TlsChannelCredentials;
import io.grpc.stub.ClientCalls;
import io.opentelemetry.api.trace.propagation.W3CTraceContextPropagator;
import io.opentelemetry.context.Context;
import io.opentelemetry.context.propagation.TextMapGetter;
import java.io.BufferedReader;
import java.io.File;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;

/** The conformance driver of Java: does what the lines on stdin ask, by the layer of {@code clients/java}. */
public final class Driver {
    static final Duration LEASE = Duration.ofSeconds(30);
    static final ExecutorService THREADS = Executors.newCachedThreadPool(work -> {
        var thread = new Thread(work);
        thread.setDaemon(true);
        return thread;
    });
    private static final PrintStream OUT =
            new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
    private static final Gson GSON = new GsonBuilder().serializeNulls().disableHtmlEscaping().create();
    private static final List<String> FEATURES = List.of("call", "stream", "lease", "work", "watch", "trace");
    private static final TextMapGetter<JsonObject> TEXTS = new TextMapGetter<>() {
        @Override
        public Iterable<String> keys(JsonObject carrier) {
            return carrier.keySet();
        }

        @Override
        public String get(JsonObject carrier, String key) {
            return carrier == null ? null : Json.text(carrier, key, null);
        }
    };

    /** What one operation does with its request. */
    @FunctionalInterface
    private interface Op {
        JsonObject run(JsonObject request) throws Exception;
    }

    /** One that answers nothing. */
    @FunctionalInterface
    private interface Quiet {
        void run(JsonObject request) throws Exception;
    }

    private final Map<String, Headway> clients = new ConcurrentHashMap<>();
    private final Map<List<String>, Handles> handles = new ConcurrentHashMap<>();
    private final Map<Integer, FutureTask<Void>> running = new ConcurrentHashMap<>();

    private final Map<String, Op> ops = Map.ofEntries(
            Map.entry("hello", request -> hello()),
            Map.entry("connect", quiet(this::connect)),
            Map.entry("disconnect", quiet(request -> disconnect(request.get("client").getAsString()))),
            Map.entry("cancel", quiet(this::cancel)),
            Map.entry("call", this::call),
            Map.entry("open", quiet(this::open)),
            Map.entry("send", quiet(this::send)),
            Map.entry("half_close", quiet(request -> handle(Stream.class, request).reading().requests().onCompleted())),
            Map.entry("next", request -> handle(Stream.class, request).reading().next(timeout(request))),
            Map.entry("close", quiet(this::close)),
            Map.entry("put", this::put),
            Map.entry("lease", this::lease),
            Map.entry("lease_end", quiet(this::leaseEnd)),
            Map.entry("lease_ack", quiet(request -> handle(Held.class, request).lease()
                    .ack(Json.bytes(request, "result")))),
            Map.entry("lease_delay", quiet(this::leaseDelay)),
            Map.entry("lease_progress", quiet(request -> handle(Held.class, request).lease()
                    .progress(request.get("fraction").getAsDouble(), Json.text(request, "note", "")))),
            Map.entry("lease_is_lost", request -> Json.of("lost", handle(Held.class, request).lease().isLost())),
            Map.entry("work", quiet(request -> handles.put(key(request),
                    new Working(client(request), request, Driver::tell)))),
            Map.entry("finish", quiet(request -> handle(Working.class, request).finish(request))),
            Map.entry("work_stop", quiet(request -> handle(Working.class, request).stop())),
            Map.entry("watch", quiet(this::watch)),
            Map.entry("watch_next", request -> handle(Watching.class, request).reading().next(timeout(request))),
            Map.entry("watch_close", quiet(this::close)));

    private Driver() {}

    /**
     * Serves until the end of stdin.
     *
     * @param arguments none
     * @throws Exception if stdin cannot be read
     */
    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err);
        new Driver().serve();
        System.exit(0);
    }

    private void serve() throws IOException, InterruptedException {
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (var line = lines.readLine(); line != null; line = lines.readLine()) {
            var request = JsonParser.parseString(line).getAsJsonObject();
            int id = request.get("id").getAsInt();
            var hasBegun = new CountDownLatch(1); // one that is cancelled before would not answer
            var task = new FutureTask<Void>(() -> answer(id, request, hasBegun), null);
            running.put(id, task);
            THREADS.execute(task);
            hasBegun.await();
        }
        clients.keySet().forEach(this::disconnect);
    }

    private void answer(int id, JsonObject request, CountDownLatch hasBegun) {
        hasBegun.countDown();
        var answer = new JsonObject();
        answer.addProperty("id", id);
        try {
            var op = ops.get(request.get("op").getAsString());
            answer.add("ok", op.run(request));
        } catch (Throwable error) { // whatever it is, the runner is told
            answer.add("error", Json.error(error));
        }
        running.remove(id);
        tell(answer);
    }

    private static void tell(JsonObject line) {
        synchronized (OUT) {
            OUT.println(GSON.toJson(line));
            OUT.flush();
        }
    }

    private static Op quiet(Quiet op) {
        return request -> {
            op.run(request);
            return new JsonObject();
        };
    }

    private JsonObject hello() {
        var told = new JsonObject();
        told.addProperty("language", "java");
        told.addProperty("version", Headway.class.getPackage().getImplementationVersion());
        told.add("features", GSON.toJsonTree(FEATURES));
        return told;
    }

    private void connect(JsonObject request) throws IOException {
        var addresses = request.getAsJsonArray("addresses").asList().stream().map(JsonElement::getAsString);
        var options = Json.has(request, "options") ? request.getAsJsonObject("options") : new JsonObject();
        var timeout = Json.span(options, "call_timeout_ms", Duration.ofSeconds(10));
        var headway = new Headway(timeout, credentials(options), addresses.toArray(String[]::new));
        clients.put(request.get("client").getAsString(), headway);
    }

    private static ChannelCredentials credentials(JsonObject options) throws IOException {
        if (!options.has("ca")) {
            return InsecureChannelCredentials.create();
        }
        var tls = TlsChannelCredentials.newBuilder().trustManager(file(options, "ca"));
        if (options.has("cert")) {
            tls.keyManager(file(options, "cert"), file(options, "key"));
        }
        if (!options.has("token_file")) {
            return tls.build();
        }
        return CompositeChannelCredentials.create(tls.build(), new Bearer(file(options, "token_file").toPath()));
    }

    private static File file(JsonObject options, String name) {
        return new File(options.get(name).getAsString());
    }

    private void disconnect(String client) {
        handles.entrySet().removeIf(each -> {
            boolean isOfClient = each.getKey().get(0).equals(client);
            if (isOfClient) {
                each.getValue().close();
            }
            return isOfClient;
        });
        clients.remove(client).close();
    }

    private void cancel(JsonObject request) {
        var task = running.get(request.get("target").getAsInt());
        if (task != null) {
            task.cancel(true);
        }
    }

    private JsonObject call(JsonObject request) {
        var rpc = rpc(request);
        var message = message(rpc, request);
        var client = client(request);
        if (!Json.has(request, "timeout_ms")) {
            return Json.of("response", Json.write(client.call(rpc, message)));
        }
        try {
            var response = ClientCalls.blockingUnaryCall(client, rpc, options(request), message);
            return Json.of("response", Json.write(response));
        } catch (StatusRuntimeException error) {
            throw HeadwayException.from(error);
        }
    }

    private void open(JsonObject request) {
        var rpc = rpc(request);
        var call = client(request).newCall(rpc, options(request));
        var reading = new Reading.OfCall();
        if (Json.has(request, "request")) {
            ClientCalls.asyncServerStreamingCall(call, message(rpc, request), reading);
        } else {
            ClientCalls.asyncBidiStreamingCall(call, reading);
        }
        handles.put(key(request), new Stream(rpc, reading));
    }

    private void send(JsonObject request) {
        var stream = handle(Stream.class, request);
        stream.reading().requests().onNext(message(stream.rpc(), request));
    }

    private void close(JsonObject request) {
        handles.remove(key(request)).close();
    }

    private JsonObject put(JsonObject request) {
        var messages = request.getAsJsonArray("messages").asList().stream().map(Json::message);
        var put = messages.toArray(dev.headway.v1.Message[]::new);
        var wait = Json.span(request, "wait_ms", Duration.ZERO);
        var context = W3CTraceContextPropagator.getInstance().extract(Context.root(), request, TEXTS);
        var told = context.wrapSupplier(() -> client(request).put(queue(request), wait, put)).get();
        var results = new JsonArray();
        told.forEach(result -> results.add(Json.write(result)));
        return Json.of("results", results);
    }

    private JsonObject lease(JsonObject request) {
        var wait = Json.span(request, "wait_ms", Duration.ZERO);
        var lease = client(request).lease(queue(request), wait, Json.span(request, "lease_ms", LEASE));
        if (lease.isEmpty()) {
            return Json.of("empty", true);
        }
        handles.put(key(request), Held.enter(lease.get()));
        return Handles.told(lease.get());
    }

    private void leaseEnd(JsonObject request) throws Exception {
        var held = handle(Held.class, request);
        handles.remove(key(request));
        if (request.get("how").getAsString().equals("cancel")) {
            held.close();
            return;
        }
        held.end().complete(request);
        try {
            held.scope().get();
        } catch (ExecutionException error) {
            if (error.getCause() instanceof HeadwayException untold) {
                throw untold;
            }
        }
    }

    private void leaseDelay(JsonObject request) {
        var delay = Json.span(request, "delay_ms", null);
        handle(Held.class, request).lease().delay(delay, Json.text(request, "reason", ""));
    }

    private void watch(JsonObject request) {
        var ids = new HashSet<String>();
        request.getAsJsonArray("ids").forEach(id -> ids.add(id.getAsString()));
        boolean attended = Json.has(request, "attended") && request.get("attended").getAsBoolean();
        handles.put(key(request), Watching.begin(new Watch(client(request), queue(request), ids, attended)));
    }

    private Headway client(JsonObject request) {
        return clients.get(request.get("client").getAsString());
    }

    private static String queue(JsonObject request) {
        return request.get("queue").getAsString();
    }

    private static List<String> key(JsonObject request) {
        return List.of(request.get("client").getAsString(), request.get("handle").getAsString());
    }

    private <T extends Handles> T handle(Class<T> kind, JsonObject request) {
        return kind.cast(handles.get(key(request)));
    }

    private static Duration timeout(JsonObject request) {
        return Json.span(request, "timeout_ms", null);
    }

    private static CallOptions options(JsonObject request) {
        var timeout = timeout(request);
        return timeout == null
                ? CallOptions.DEFAULT
                : CallOptions.DEFAULT.withDeadlineAfter(timeout.toMillis(), TimeUnit.MILLISECONDS);
    }

    private static Message message(MethodDescriptor<Message, Message> rpc, JsonObject request) {
        var kind = (MethodDescriptor.PrototypeMarshaller<Message>) rpc.getRequestMarshaller();
        return Json.read(request.get("request"), kind.getMessagePrototype().newBuilderForType());
    }

    @SuppressWarnings("unchecked") // every message of the schema is a Message
    private static MethodDescriptor<Message, Message> rpc(JsonObject request) {
        var name = request.get("rpc").getAsString();
        var service = name.startsWith("AdminService.")
                ? AdminServiceGrpc.getServiceDescriptor()
                : QueueServiceGrpc.getServiceDescriptor();
        var bare = name.substring(name.lastIndexOf('.') + 1);
        return service.getMethods().stream()
                .filter(method -> bare.equals(method.getBareMethodName()))
                .map(method -> (MethodDescriptor<Message, Message>) method)
                .findFirst()
                .orElseThrow();
    }
}
