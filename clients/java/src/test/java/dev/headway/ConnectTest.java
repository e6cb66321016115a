package dev.headway;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.headway.v1.AckRequest;
import dev.headway.v1.GetRequest;
import dev.headway.v1.GetResponse;
import dev.headway.v1.QueueServiceGrpc;
import io.grpc.Status;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class ConnectTest {
    private static final Duration LONG = Duration.ofMinutes(1);

    @Test
    void aCallHasTheCallTimeoutBeyondItsWait() throws Exception {
        try (var service = new FakeService(); var headway = service.connect()) {
            service.gets.add(FakeService.delivery("a"));
            headway.lease("q", Duration.ofMinutes(10), Duration.ofMinutes(1)); // by a name: there may be another try
            long seconds = service.deadlines.take().timeRemaining(TimeUnit.SECONDS);
            assertTrue(seconds > 600 && seconds <= 630, "it has " + seconds + " s left");
            service.gets.add(FakeService.delivery("b"));
            var get = GetRequest.newBuilder().setWait(Headway.wire(Duration.ofMinutes(10))).build();
            headway.call(QueueServiceGrpc.getGetMethod(), get); // once
            seconds = service.deadlines.take().timeRemaining(TimeUnit.SECONDS);
            assertTrue(seconds > 630 && seconds <= 660, "it has " + seconds + " s left");
        }
    }

    @Test
    void workThatIsDoneIsAckedByWhomeverAnswers() throws Exception {
        try (var silent = new FakeService(); var other = new FakeService()) {
            silent.areAcksAnswered = false;
            try (var headway = new Headway(Duration.ofSeconds(4), silent.address(), other.address())) {
                var ack = AckRequest.newBuilder().setQueue("q").addLeases("token").build();
                while (silent.asked.isEmpty()) {
                    assertEquals(1, headway.call(QueueServiceGrpc.getAckMethod(), ack).getResultsCount());
                }
            }
        }
    }

    @Test
    void aCallOfTheStubHasTheCallTimeout() throws Exception {
        try (var service = new FakeService(); var headway = service.connect()) {
            service.gets.add(FakeService.delivery("a"));
            QueueServiceGrpc.newBlockingStub(headway).get(GetRequest.getDefaultInstance());
            assertTrue(service.deadlines.take().timeRemaining(TimeUnit.SECONDS) <= 60);
        }
    }

    @Test
    void aDeadlineOfTheCallersOwnStays() throws Exception {
        try (var service = new FakeService(); var headway = service.connect()) {
            service.gets.add(FakeService.delivery("a"));
            var patient = QueueServiceGrpc.newBlockingStub(headway).withDeadlineAfter(1, TimeUnit.HOURS);
            patient.get(GetRequest.getDefaultInstance());
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
    void callsGoRoundTheAddressesThatAreThere() throws Exception {
        var gone = new FakeService();
        var nobody = gone.address();
        gone.close();
        try (var first = new FakeService(); var second = new FakeService()) {
            try (var headway = new Headway(FakeService.CALL_TIMEOUT, first.address(), nobody, second.address())) {
                for (var service : List.of(first, second)) {
                    service.gets.addAll(Collections.nCopies(100, GetResponse.getDefaultInstance()));
                }
                for (var service : List.of(first, second)) {
                    while (service.asked.isEmpty()) {
                        headway.lease("q", Duration.ZERO, Duration.ofMinutes(1));
                    }
                }
            }
        }
    }

    @Test
    void blanksAroundAnAddressDoNotCount() throws Exception {
        try (var service = new FakeService(); var headway = new Headway(LONG, " " + service.address())) {
            service.gets.add(GetResponse.getDefaultInstance());
            assertTrue(headway.lease("q", Duration.ZERO, LONG).isEmpty());
        }
    }

    @ParameterizedTest
    @CsvSource(delimiter = '|', value = {
        "'' | 127.0.0.1:7420",
        "' ' | 127.0.0.1:7420",
        "a:1 | a:1",
        "' a:1' | a:1",
        "'a:1, b:2 ' | a:1;b:2",
        "'a:1,' | a:1",
    })
    void theEnvironmentNamesTheAddresses(String told, String addresses) {
        assertEquals(addresses, String.join(";", Headway.addresses(told)));
    }

    @Test
    void spansGoOverTheWire() {
        for (var span : List.of(Duration.ZERO, Duration.ofMillis(1500), Duration.ofNanos(1), Duration.ofDays(366))) {
            var told = Headway.wire(span);
            assertEquals(span, Duration.ofSeconds(told.getSeconds(), told.getNanos()));
        }
    }
}
