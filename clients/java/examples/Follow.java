import com.google.protobuf.ByteString;
import dev.headway.Headway;
import dev.headway.v1.CreateRequest;
import dev.headway.v1.DeleteRequest;
import dev.headway.v1.Message;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;

/** Watches a message from its place in line to its end, while a worker in the same program works on it. */
public final class Follow {
    public static void main(String[] arguments) {
        try (var headway = Headway.connect()) {
            headway.queues().create(CreateRequest.newBuilder().setQueue("java-follow").build());
            var queue = headway.queue("java-follow");
            var picture = Message.newBuilder().setId("picture").setPayload(ByteString.copyFromUtf8("<svg/>"));
            queue.put(picture.build(), Duration.ZERO);

            var isSeen = new CountDownLatch(1);
            try (var watch = queue.watch("picture")) { // many ids may be on one stream
                var first = watch.next().getPosition();
                System.out.println("number " + first.getPosition() + " of " + first.getLength());
                var worker = queue.work(1, lease -> {
                    lease.progress(0.5, "half of it");
                    isSeen.await();
                    return "thumbnail".getBytes(StandardCharsets.UTF_8);
                });
                for (var news : watch) { // ends after the last word on the last id
                    if (news.getLeased().hasProgress()) {
                        System.out.println(news.getLeased().getProgress().getNote());
                        isSeen.countDown();
                    } else if (news.hasFinished()) {
                        var end = news.getFinished();
                        System.out.println(end.getOutcome() + " " + end.getResult().toStringUtf8());
                    }
                }
                worker.close(); // leases no more, and waits for what it holds
            }
            headway.queues().delete(DeleteRequest.newBuilder().setQueue("java-follow").build());
        }
    }
}
