import dev.headway.Headway;
import dev.headway.HeadwayException;
import dev.headway.v1.CreateRequest;
import dev.headway.v1.DeleteRequest;
import dev.headway.v1.DescribeRequest;
import dev.headway.v1.ErrorReason;
import dev.headway.v1.Policy;
import dev.headway.v1.QueueServiceGrpc;

/** Tells errors apart by their reason. */
public final class Errors {
    public static void main(String[] arguments) {
        try (var headway = Headway.connect()) {
            var policy = Policy.newBuilder().setBound(1);
            headway.queues().create(CreateRequest.newBuilder().setQueue("java-errors").setPolicy(policy).build());
            var queue = headway.queue("java-errors");
            try {
                queue.put(new byte[1]);
                queue.put(new byte[2]);
            } catch (HeadwayException error) {
                if (!error.is(ErrorReason.ERROR_REASON_QUEUE_FULL)) {
                    throw error;
                }
                System.out.println("full at " + error.metadata().get("bound") + ", try again in "
                        + error.retryAfter().orElseThrow().toMillis() + " ms");
                System.out.println("may have happened: " + error.isOutcomeUnknown());
            }
            headway.queues().delete(DeleteRequest.newBuilder().setQueue("java-errors").build());

            var request = DescribeRequest.newBuilder().setQueue("java-errors").build();
            try {
                headway.call(QueueServiceGrpc.getDescribeMethod(), request); // queues().describe(), with typed errors
            } catch (HeadwayException error) {
                System.out.println(error.code() + " " + error.reason());
            }
        }
    }
}
