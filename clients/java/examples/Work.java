import dev.headway.Headway;
import dev.headway.v1.CloseRequest;
import dev.headway.v1.CreateRequest;
import dev.headway.v1.DeleteRequest;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.atomic.AtomicInteger;

/** Works through a queue, two messages at a time, until nothing is left. */
public final class Work {
    public static void main(String[] arguments) {
        try (var headway = Headway.connect()) {
            headway.queues().create(CreateRequest.newBuilder().setQueue("java-work").build());
            var queue = headway.queue("java-work");
            for (int number = 1; number <= 10; number++) {
                queue.put(Integer.toString(number).getBytes(StandardCharsets.UTF_8));
            }
            headway.queues().close(CloseRequest.newBuilder().setQueue("java-work").build()); // no more will come

            var sum = new AtomicInteger();
            var worker = queue.work(2, lease -> {
                int number = Integer.parseInt(lease.message().getPayload().toStringUtf8());
                sum.addAndGet(number);
                return Integer.toString(number * number).getBytes(StandardCharsets.UTF_8); // for who watches it
            });
            worker.join(); // until the queue is drained; worker.close() would stop it earlier
            System.out.println("the sum is " + sum);
            headway.queues().delete(DeleteRequest.newBuilder().setQueue("java-work").build());
        }
    }
}
