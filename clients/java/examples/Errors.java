import dev.headway.Headway;
import dev.headway.HeadwayException;
import dev.headway.v1.CreateRequest;
import dev.headway.v1.DeleteRequest;
import dev.headway.v1.DescribeRequest;
import dev.headway.v1.ErrorReason;
import dev.headway.v1.Message;
import dev.headway.v1.Policy;
import dev.headway.v1.QueueServiceGrpc;
import java.time.Duration;

/** Tells errors apart by their reason. */
public final class Errors {
    public static void main(String[] arguments) {
        try (var headway = new Headway(Duration.ofSeconds(10))) {
            var policy = Policy.newBuilder().setBound(1);
            var queues = QueueServiceGrpc.newBlockingStub(headway); // the generated stub
            queues.create(CreateRequest.newBuilder().setQueue("java-errors").setPolicy(policy).build());
            try {
                headway.put("java-errors", Duration.ZERO, Message.getDefaultInstance());
                headway.put("java-errors", Duration.ZERO, Message.getDefaultInstance());
            } catch (HeadwayException error) {
                if (error.status().getReason() != ErrorReason.ERROR_REASON_QUEUE_FULL) {
                    throw error;
                }
                System.out.println("full at " + error.status().getMetadataMap().get("bound") + ", try again in "
                        + error.retryAfter().toMillis() + " ms");
                System.out.println("may have happened: " + error.isOutcomeUnknown());
            }
            queues.delete(DeleteRequest.newBuilder().setQueue("java-errors").build());

            var request = DescribeRequest.newBuilder().setQueue("java-errors").build();
            try {
                headway.call(QueueServiceGrpc.getDescribeMethod(), request); // as the stub does, with typed errors
            } catch (HeadwayException error) {
                System.out.println(error.code() + " " + error.status().getReason());
            }
        }
    }
}
