package dev.headway;

import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;

/** Tests of a connection to a service that answers as it is told. */
abstract class WithService {
    FakeService service;
    Headway headway;

    @BeforeEach
    void connect() throws Exception {
        service = new FakeService();
        headway = service.connect();
    }

    @AfterEach
    void close() {
        headway.close();
        service.close();
    }
}
