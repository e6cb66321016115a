package dev.headway;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.headway.v1.GetRequest;
import dev.headway.v1.QueueServiceGrpc;
import io.grpc.EquivalentAddressGroup;
import io.grpc.Status;
import java.net.InetSocketAddress;
import java.net.URI;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

class ConnectTest {
    @Test
    void oneAddressIsAnyTargetOfGrpc() {
        assertEquals("dns:///headway:7420", Addresses.target(List.of("dns:///headway:7420")));
    }

    @Test
    void severalAddressesAreOneTarget() {
        assertEquals("headway:///127.0.0.1:1,localhost:2", Addresses.target(List.of("127.0.0.1:1", "localhost:2")));
        assertEquals("/[::1]:1,a_b:2", URI.create(Addresses.target(List.of("[::1]:1", "a_b:2"))).getPath());
    }

    @Test
    void whatIsNoAddressIsLeftOutAsLongAsAnotherIsFound() {
        var found = Addresses.lookUp(List.of("127.0.0.1:1", "no port", "[::1]:3", "127.0.0.1:x")).getValue();
        var addresses = found.stream().map(EquivalentAddressGroup::getAddresses).toList();
        assertEquals(
                List.of(List.of(new InetSocketAddress("127.0.0.1", 1)), List.of(new InetSocketAddress("::1", 3))),
                addresses);
    }

    @Test
    void noAddressAtAllIsUnavailable() {
        var found = Addresses.lookUp(List.of("no port"));
        assertFalse(found.hasValue());
        assertEquals(Status.Code.UNAVAILABLE, found.getStatus().getCode());
    }

    @Test
    void aCallHasTheCallTimeoutBeyondItsWait() throws Exception {
        try (var service = new FakeService(); var headway = service.connect()) {
            service.gets.add(FakeService.delivery("a"));
            var request = GetRequest.newBuilder().setQueue("q").setWait(Spans.write(Duration.ofMinutes(10)));
            headway.call(QueueServiceGrpc.getGetMethod(), request.build());
            long seconds = service.deadlines.take().timeRemaining(TimeUnit.SECONDS);
            assertTrue(seconds > 600 && seconds <= 660, "it has " + seconds + " s left");
        }
    }

    @Test
    void aCallOfTheStubHasTheCallTimeout() throws Exception {
        try (var service = new FakeService(); var headway = service.connect()) {
            service.gets.add(FakeService.delivery("a"));
            headway.queues().get(GetRequest.getDefaultInstance());
            assertTrue(service.deadlines.take().timeRemaining(TimeUnit.SECONDS) <= 60);
        }
    }

    @Test
    void aDeadlineOfTheCallersOwnStays() throws Exception {
        try (var service = new FakeService(); var headway = service.connect()) {
            service.gets.add(FakeService.delivery("a"));
            headway.queues().withDeadlineAfter(1, TimeUnit.HOURS).get(GetRequest.getDefaultInstance());
            assertTrue(service.deadlines.take().timeRemaining(TimeUnit.MINUTES) >= 59);
        }
    }

    @Test
    void anInterruptCancelsTheCall() throws Exception {
        try (var service = new FakeService(); var headway = service.connect()) {
            Thread.currentThread().interrupt();
            var rpc = QueueServiceGrpc.getGetMethod();
            var error = assertThrows(
                    HeadwayException.class, () -> headway.call(rpc, GetRequest.getDefaultInstance()));
            assertEquals(Status.Code.CANCELLED, error.code());
            assertTrue(Thread.interrupted());
        }
    }

    @Test
    void spansGoOverTheWireAndBack() {
        for (var span : List.of(Duration.ZERO, Duration.ofMillis(1500), Duration.ofNanos(1), Duration.ofDays(366))) {
            assertEquals(span, Spans.read(Spans.write(span)));
        }
    }
}
