import com.google.protobuf.ByteString;
import dev.headway.Headway;
import dev.headway.v1.CreateRequest;
import dev.headway.v1.DeleteRequest;
import dev.headway.v1.Message;
import java.time.Duration;

/** Puts a message and works on it. */
public final class First {
    public static void main(String[] arguments) throws Exception {
        try (var headway = Headway.connect()) {
            headway.queues().create(CreateRequest.newBuilder().setQueue("java-first").build());
            var queue = headway.queue("java-first");
            var hello = Message.newBuilder().setId("hello").setPayload(ByteString.copyFromUtf8("hello, world"));
            var put = queue.put(hello.build(), Duration.ZERO);
            System.out.println("put " + put.getId() + " at place " + put.getPosition());

            try (var lease = queue.lease(Duration.ofSeconds(5)).orElseThrow()) { // kept alive until it is closed
                System.out.println("got " + lease.message().getPayload().toStringUtf8());
                lease.ack(); // without it the message goes back to the head of the line
            }
            headway.queues().delete(DeleteRequest.newBuilder().setQueue("java-first").build());
        }
    }
}
