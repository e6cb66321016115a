import com.google.protobuf.ByteString;
import dev.headway.Headway;
import dev.headway.Watch;
import dev.headway.Worker;
import dev.headway.v1.CreateRequest;
import dev.headway.v1.DeleteRequest;
import dev.headway.v1.Message;
import dev.headway.v1.QueueServiceGrpc;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Set;
import java.util.concurrent.CountDownLatch;

/** Watches a message from its place in line to its end, while a worker in the same program works on it. */
public final class Follow {
    public static void main(String[] arguments) {
        try (var headway = new Headway(Duration.ofSeconds(10))) {
            var queues = QueueServiceGrpc.newBlockingStub(headway); // the generated stub
            queues.create(CreateRequest.newBuilder().setQueue("java-follow").build());
            var picture = Message.newBuilder().setId("picture").setPayload(ByteString.copyFromUtf8("<svg/>"));
            headway.put("java-follow", Duration.ZERO, picture.build());

            var isSeen = new CountDownLatch(1);
            // Many ids may be on one stream.
            try (var watch = new Watch(headway, "java-follow", Set.of("picture"), false)) {
                var first = watch.next().getPosition();
                System.out.println("number " + first.getPosition() + " of " + first.getLength());
                var worker = new Worker(headway, "java-follow", 1, Duration.ofSeconds(30), lease -> {
                    lease.progress(0.5, "half of it");
                    isSeen.await();
                    return "thumbnail".getBytes(StandardCharsets.UTF_8);
                });
                while (watch.hasNext()) { // until the last word on the last id
                    var news = watch.next();
                    if (news.getLeased().hasProgress()) {
                        System.out.println(news.getLeased().getProgress().getNote());
                        isSeen.countDown();
                    } else if (news.hasFinished()) {
                        var end = news.getFinished();
                        System.out.println(end.getOutcome() + " " + end.getResult().toStringUtf8());
                    }
                }
                worker.stop(); // leases no more, and finishes what it holds
                worker.done().join();
            }
            queues.delete(DeleteRequest.newBuilder().setQueue("java-follow").build());
        }
    }
}
