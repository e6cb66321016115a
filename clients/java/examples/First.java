import com.google.protobuf.ByteString;
import dev.headway.Headway;
import dev.headway.v1.CreateRequest;
import dev.headway.v1.DeleteRequest;
import dev.headway.v1.Message;
import dev.headway.v1.QueueServiceGrpc;
import java.time.Duration;

/** Puts a message and works on it. */
public final class First {
    public static void main(String[] arguments) throws Exception {
        try (var headway = new Headway(Duration.ofSeconds(10))) {
            var queues = QueueServiceGrpc.newBlockingStub(headway); // the generated stub
            queues.create(CreateRequest.newBuilder().setQueue("java-first").build());
            var hello = Message.newBuilder().setId("hello").setPayload(ByteString.copyFromUtf8("hello, world"));
            var put = headway.put("java-first", Duration.ZERO, hello.build()).get(0);
            System.out.println("put " + put.getId() + " at place " + put.getPosition());

            var got = headway.lease("java-first", Duration.ofSeconds(5), Duration.ofSeconds(30));
            try (var lease = got.orElseThrow()) { // kept alive until it is closed
                System.out.println("got " + lease.delivery().getMessage().getPayload().toStringUtf8());
                lease.ack(null); // without it the message goes back to the head of the line
            }
            queues.delete(DeleteRequest.newBuilder().setQueue("java-first").build());
        }
    }
}
