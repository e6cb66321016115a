package dev.headway;

import io.grpc.EquivalentAddressGroup;
import io.grpc.NameResolver;
import io.grpc.NameResolverProvider;
import io.grpc.Status;
import io.grpc.StatusOr;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.URISyntaxException;
import java.net.UnknownHostException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Executor;

/** Resolves a fixed list of addresses, of which each may be a DNS name: gRPC's own resolvers know one name only. */
final class Addresses extends NameResolverProvider {
    private static final String SCHEME = "headway";

    /** The gRPC target of the addresses, each "host:port". */
    static String target(List<String> addresses) {
        if (addresses.size() == 1) {
            return addresses.get(0);
        }
        try {
            return new URI(SCHEME, "", "/" + String.join(",", addresses), null).toString();
        } catch (URISyntaxException error) {
            throw new IllegalArgumentException("not addresses: " + addresses, error);
        }
    }

    @Override
    protected boolean isAvailable() {
        return true;
    }

    @Override
    protected int priority() {
        return 5;
    }

    @Override
    public String getDefaultScheme() {
        return SCHEME;
    }

    @Override
    public NameResolver newNameResolver(URI target, NameResolver.Args args) {
        if (!SCHEME.equals(target.getScheme())) {
            return null;
        }
        var addresses = List.of(target.getPath().substring(1).split(","));
        return new NameResolver() {
            private Listener2 listener;

            @Override
            public String getServiceAuthority() {
                return addresses.get(0);
            }

            @Override
            public void start(Listener2 listener) {
                this.listener = listener;
                refresh();
            }

            @Override
            public void refresh() {
                Executor blocking = args.getOffloadExecutor();
                blocking.execute(() -> {
                    var found = lookUp(addresses);
                    args.getSynchronizationContext()
                            .execute(() -> listener.onResult2(ResolutionResult.newBuilder()
                                    .setAddressesOrError(found)
                                    .build()));
                });
            }

            @Override
            public void shutdown() {}
        };
    }

    /** What is found of the addresses: an error only if it is nothing at all. */
    static StatusOr<List<EquivalentAddressGroup>> lookUp(List<String> addresses) {
        var found = new ArrayList<EquivalentAddressGroup>();
        var failure = Status.UNAVAILABLE.withDescription("no address");
        for (var address : addresses) {
            int colon = address.lastIndexOf(':');
            try {
                for (var host : InetAddress.getAllByName(address.substring(0, colon))) {
                    int port = Integer.parseInt(address.substring(colon + 1));
                    found.add(new EquivalentAddressGroup(new InetSocketAddress(host, port)));
                }
            } catch (UnknownHostException | IndexOutOfBoundsException | NumberFormatException error) {
                failure = Status.UNAVAILABLE.withDescription("no such host and port: " + address).withCause(error);
            }
        }
        return found.isEmpty() ? StatusOr.fromStatus(failure) : StatusOr.fromValue(found);
    }
}
