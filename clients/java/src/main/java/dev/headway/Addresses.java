package dev.headway;

import io.grpc.EquivalentAddressGroup;
import io.grpc.NameResolver;
import io.grpc.NameResolverProvider;
import io.grpc.Status;
import io.grpc.StatusOr;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.UnknownHostException;
import java.util.ArrayList;
import java.util.List;

/** Resolves a fixed list of addresses, of which each may be a DNS name: gRPC's own resolvers know one name only. */
final class Addresses extends NameResolverProvider {
    private static final String SCHEME = "headway";

    /** The gRPC target of the addresses, each "host:port"; one alone may be any target. */
    static String target(List<String> addresses) {
        // What no URI may hold: the brackets of IPv6.
        var path = String.join(",", addresses).replace("[", "%5B").replace("]", "%5D");
        return addresses.size() == 1 ? addresses.get(0) : SCHEME + ":///" + path;
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
        return SCHEME.equals(target.getScheme()) ? new Resolver(target, args) : null;
    }

    private static final class Resolver extends NameResolver {
        private final List<String> addresses;
        private final Args args;
        private Listener2 listener;

        Resolver(URI target, Args args) {
            addresses = List.of(target.getPath().substring(1).split(","));
            this.args = args;
        }

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
            args.getOffloadExecutor().execute(() -> {
                var found = ResolutionResult.newBuilder().setAddressesOrError(lookUp(addresses)).build();
                args.getSynchronizationContext().execute(() -> listener.onResult2(found));
            });
        }

        @Override
        public void shutdown() {}
    }

    /** What is found of the addresses: an error only if it is nothing at all. */
    static StatusOr<List<EquivalentAddressGroup>> lookUp(List<String> addresses) {
        var found = new ArrayList<EquivalentAddressGroup>();
        for (var address : addresses) {
            try {
                int colon = address.lastIndexOf(':');
                int port = Integer.parseInt(address.substring(colon + 1));
                for (var host : InetAddress.getAllByName(address.substring(0, colon))) {
                    found.add(new EquivalentAddressGroup(new InetSocketAddress(host, port)));
                }
            } catch (UnknownHostException | IndexOutOfBoundsException | NumberFormatException error) {
                continue; // the others may do
            }
        }
        var failure = Status.UNAVAILABLE.withDescription("none of these is a host and port: " + addresses);
        return found.isEmpty() ? StatusOr.fromStatus(failure) : StatusOr.fromValue(found);
    }
}
