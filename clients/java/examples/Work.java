import com.google.protobuf.ByteString;
import dev.headway.Headway;
import dev.headway.Worker;
import dev.headway.v1.CloseRequest;
import dev.headway.v1.CreateRequest;
import dev.headway.v1.DeleteRequest;
import dev.headway.v1.Message;
import dev.headway.v1.QueueServiceGrpc;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.concurrent.atomic.AtomicInteger;

/** Works through a queue, two messages at a time, until nothing is left. */
public final class Work {
    public static void main(String[] arguments) {
        try (var headway = new Headway(Duration.ofSeconds(10))) {
            var queues = QueueServiceGrpc.newBlockingStub(headway); // the generated stub
            queues.create(CreateRequest.newBuilder().setQueue("java-work").build());
            for (int number = 1; number <= 10; number++) {
                var payload = ByteString.copyFromUtf8(Integer.toString(number));
                headway.put("java-work", Duration.ZERO, Message.newBuilder().setPayload(payload).build());
            }
            queues.close(CloseRequest.newBuilder().setQueue("java-work").build()); // no more will come

            var sum = new AtomicInteger();
            var worker = new Worker(headway, "java-work", 2, Duration.ofSeconds(30), lease -> {
                int number = Integer.parseInt(lease.delivery().getMessage().getPayload().toStringUtf8());
                sum.addAndGet(number);
                return Integer.toString(number * number).getBytes(StandardCharsets.UTF_8); // for who watches it
            });
            worker.done().join(); // until the queue is drained; worker.stop() would end it earlier
            System.out.println("the sum is " + sum);
            queues.delete(DeleteRequest.newBuilder().setQueue("java-work").build());
        }
    }
}
