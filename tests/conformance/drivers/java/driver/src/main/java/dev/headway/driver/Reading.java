package dev.headway.driver;

import com.google.gson.JsonObject;
import dev.headway.HeadwayException;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import com.google.protobuf.Message;
import java.time.Duration;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** What came on a stream and was not asked for yet; its end, or its error, is told as often as it is asked for. */
class Reading {
    private final BlockingQueue<Callable<JsonObject>> came = new LinkedBlockingQueue<>();

    void tell(JsonObject answer) {
        came.add(() -> answer);
    }

    void end() {
        came.add(this::ended);
    }

    void fail(Throwable error) {
        came.add(() -> failed(error));
    }

    JsonObject next(Duration timeout) throws Exception {
        var first = came.poll(timeout.toMillis(), TimeUnit.MILLISECONDS);
        return first == null ? Json.of("timeout", true) : first.call();
    }

    private JsonObject ended() {
        end();
        return Json.of("end", true);
    }

    private JsonObject failed(Throwable error) throws Exception {
        fail(error);
        throw error instanceof StatusRuntimeException told ? HeadwayException.from(told) : (Exception) error;
    }

    /** The answers of a call that streams. */
    static final class OfCall extends Reading implements ClientResponseObserver<Message, Message> {
        private ClientCallStreamObserver<Message> requests;

        @Override
        public void beforeStart(ClientCallStreamObserver<Message> requests) {
            this.requests = requests;
        }

        ClientCallStreamObserver<Message> requests() {
            return requests;
        }

        @Override
        public void onNext(Message answer) {
            tell(Json.of("response", Json.write(answer)));
        }

        @Override
        public void onError(Throwable error) {
            fail(error);
        }

        @Override
        public void onCompleted() {
            end();
        }
    }
}
