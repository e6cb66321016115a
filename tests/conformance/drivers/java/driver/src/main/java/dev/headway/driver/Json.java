package dev.headway.driver;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.protobuf.MessageOrBuilder;
import com.google.protobuf.util.Durations;
import com.google.protobuf.util.JsonFormat;
import dev.headway.HeadwayException;
import dev.headway.v1.ErrorReason;
import java.time.Duration;
import java.util.Base64;
import java.util.concurrent.CancellationException;

/** Requests and answers as JSON: spans in milliseconds, bytes in base64, messages in protobuf's own form. */
final class Json {
    private static final String REASON_PREFIX = "ERROR_REASON_";
    private static final JsonFormat.Printer PRINTER = JsonFormat.printer().omittingInsignificantWhitespace();

    private Json() {}

    static JsonObject of(String key, JsonElement value) {
        var object = new JsonObject();
        object.add(key, value);
        return object;
    }

    static JsonObject of(String key, boolean value) {
        var object = new JsonObject();
        object.addProperty(key, value);
        return object;
    }

    static boolean has(JsonObject request, String key) {
        return request.has(key) && !request.get(key).isJsonNull();
    }

    /** A text, or what stands for one that is absent. */
    static String text(JsonObject request, String key, String absent) {
        return has(request, key) ? request.get(key).getAsString() : absent;
    }

    /** A span, or what stands for one that is absent. */
    static Duration span(JsonObject request, String key, Duration absent) {
        return has(request, key) ? Duration.ofMillis(request.get(key).getAsLong()) : absent;
    }

    /** Bytes; none if they are absent. */
    static byte[] bytes(JsonObject request, String key) {
        return Base64.getDecoder().decode(text(request, key, ""));
    }

    static JsonObject write(MessageOrBuilder message) {
        try {
            return JsonParser.parseString(PRINTER.print(message)).getAsJsonObject();
        } catch (InvalidProtocolBufferException error) {
            throw new IllegalArgumentException(error);
        }
    }

    static Message read(JsonElement json, Message.Builder into) {
        try {
            JsonFormat.parser().merge(json.toString(), into);
            return into.build();
        } catch (InvalidProtocolBufferException error) {
            throw new IllegalArgumentException(error);
        }
    }

    static dev.headway.v1.Message message(JsonElement json) {
        var told = json.getAsJsonObject();
        var message = dev.headway.v1.Message.newBuilder()
                .setPayload(ByteString.copyFrom(bytes(told, "payload")))
                .setId(text(told, "id", ""));
        if (has(told, "headers")) {
            var headers = told.getAsJsonObject("headers");
            headers.keySet().forEach(key -> message.putHeaders(key, headers.get(key).getAsString()));
        }
        if (has(told, "delay_ms")) {
            message.setDelay(wire(told, "delay_ms"));
        }
        if (has(told, "ttl_ms")) {
            message.setTimeToLive(wire(told, "ttl_ms"));
        }
        return message.build();
    }

    private static com.google.protobuf.Duration wire(JsonObject told, String key) {
        return Durations.fromMillis(told.get(key).getAsLong());
    }

    static JsonObject error(Throwable error) {
        var told = new JsonObject();
        var metadata = new JsonObject();
        var violations = new JsonArray();
        told.addProperty("text", String.valueOf(error.getMessage()));
        told.add("reason", JsonNull.INSTANCE);
        told.add("metadata", metadata);
        told.add("retry_after_ms", JsonNull.INSTANCE);
        told.add("violations", violations);
        told.addProperty("outcome_unknown", false);
        if (error instanceof HeadwayException typed) {
            told.addProperty("code", typed.code().name());
            if (typed.status().getReason() != ErrorReason.ERROR_REASON_UNSPECIFIED) {
                told.addProperty("reason", typed.status().getReason().name().substring(REASON_PREFIX.length()));
            }
            typed.status().getMetadataMap().forEach(metadata::addProperty);
            if (!typed.retryAfter().isZero()) {
                told.addProperty("retry_after_ms", typed.retryAfter().toNanos() / 1e6);
            }
            typed.violations().forEach(each -> {
                var violation = new JsonObject();
                violation.addProperty("field", each.getField());
                violation.addProperty("description", each.getDescription());
                violations.add(violation);
            });
            told.addProperty("outcome_unknown", typed.isOutcomeUnknown());
        } else {
            boolean isCancelled = error instanceof InterruptedException || error instanceof CancellationException;
            told.addProperty("code", isCancelled ? "CANCELLED" : "DRIVER");
            told.addProperty("text", error.toString());
        }
        return told;
    }
}
