package dev.headway.driver;

import io.grpc.CallCredentials;
import io.grpc.Metadata;
import io.grpc.Status;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.Executor;

/** The token of a file, which is read for each call. */
final class Bearer extends CallCredentials {
    private static final Metadata.Key<String> AUTHORIZATION =
            Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
    private final Path file;

    Bearer(Path file) {
        this.file = file;
    }

    @Override
    public void applyRequestMetadata(RequestInfo call, Executor threads, MetadataApplier applier) {
        threads.execute(() -> {
            try {
                var headers = new Metadata();
                headers.put(AUTHORIZATION, "Bearer " + Files.readString(file).strip());
                applier.apply(headers);
            } catch (IOException error) {
                applier.fail(Status.UNAUTHENTICATED.withDescription("there is no token").withCause(error));
            }
        });
    }
}
