import dev.headway.Headway;
import dev.headway.v1.CreateRequest;
import dev.headway.v1.QueueServiceGrpc;
import io.grpc.CallCredentials;
import io.grpc.CompositeChannelCredentials;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.TlsChannelCredentials;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.concurrent.Executor;

/** Connects by TLS, with a certificate and a token. */
public final class Secure {
    public static void main(String[] arguments) throws IOException {
        var tls = TlsChannelCredentials.newBuilder()
                .trustManager(new File(System.getenv("HEADWAY_CA"))) // without it: whom this Java trusts
                .keyManager( // if the service wants a certificate; the key is PKCS #8
                        new File(System.getenv("HEADWAY_CERT")), new File(System.getenv("HEADWAY_KEY")))
                .build();
        var credentials = CompositeChannelCredentials.create(tls, new Bearer());
        try (var headway = new Headway(Duration.ofSeconds(10), credentials)) {
            var request = CreateRequest.newBuilder().setQueue("java-secure").build();
            headway.call(QueueServiceGrpc.getCreateMethod(), request);
            System.out.println("created over TLS");
        }
    }

    /** Reads the token for each call and stream: one that expires is followed by the next. */
    private static final class Bearer extends CallCredentials {
        private static final Metadata.Key<String> KEY =
                Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

        @Override
        public void applyRequestMetadata(RequestInfo call, Executor threads, MetadataApplier applier) {
            threads.execute(() -> {
                try {
                    var headers = new Metadata();
                    var token = Files.readString(Path.of(System.getenv("HEADWAY_TOKEN_FILE")));
                    headers.put(KEY, "Bearer " + token.strip());
                    applier.apply(headers);
                } catch (IOException error) {
                    applier.fail(Status.UNAUTHENTICATED.withCause(error));
                }
            });
        }
    }
}
