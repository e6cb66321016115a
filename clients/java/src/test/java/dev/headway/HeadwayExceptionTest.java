package dev.headway;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.Any;
import com.google.rpc.BadRequest;
import com.google.rpc.BadRequest.FieldViolation;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import dev.headway.v1.ErrorReason;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

class HeadwayExceptionTest {
    private static final FieldViolation VIOLATION =
            FieldViolation.newBuilder().setField("wait").setDescription("at most 1 h").build();

    @Test
    void tellsWhatTheDetailsSay() {
        var info = ErrorInfo.newBuilder().setDomain("headway.v1").setReason("QUEUE_FULL").putMetadata("bound", "7");
        var retry = RetryInfo.newBuilder().setRetryDelay(Headway.wire(Duration.ofMillis(1500)));
        var bad = BadRequest.newBuilder().addFieldViolations(VIOLATION);
        var failure = failure(Status.Code.RESOURCE_EXHAUSTED, info.build(), retry.build(), bad.build());
        var error = HeadwayException.from(failure);

        assertEquals(Status.Code.RESOURCE_EXHAUSTED, error.code());
        assertEquals(ErrorReason.ERROR_REASON_QUEUE_FULL, error.status().getReason());
        assertEquals(Map.of("bound", "7"), error.status().getMetadataMap());
        assertEquals(Duration.ofMillis(1500), error.retryAfter());
        assertEquals(List.of(VIOLATION), error.violations());
        assertFalse(error.isOutcomeUnknown());
        assertEquals("RESOURCE_EXHAUSTED: no (ERROR_REASON_QUEUE_FULL)", error.getMessage());
    }

    @Test
    void reasonsOfOtherDomainsAndUnknownOnesAreNone() {
        var foreign = ErrorInfo.newBuilder().setDomain("example.org").setReason("QUEUE_FULL").build();
        var newer = ErrorInfo.newBuilder().setDomain("headway.v1").setReason("OF_A_LATER_VERSION").build();
        for (var info : List.of(foreign, newer)) {
            var error = HeadwayException.from(failure(Status.Code.UNAVAILABLE, info));
            assertEquals(ErrorReason.ERROR_REASON_UNSPECIFIED, error.status().getReason());
        }
    }

    @Test
    void detailsThatCannotBeReadLeaveTheCodeToSpeak() {
        var broken = Any.newBuilder()
                .setTypeUrl("type.googleapis.com/google.rpc.ErrorInfo")
                .setValue(com.google.protobuf.ByteString.copyFromUtf8("\377"))
                .build();
        var status = com.google.rpc.Status.newBuilder().setCode(Status.Code.NOT_FOUND.value()).addDetails(broken);
        var error = HeadwayException.from(StatusProto.toStatusRuntimeException(status.build()));
        assertEquals(Status.Code.NOT_FOUND, error.code());
        assertEquals(ErrorReason.ERROR_REASON_UNSPECIFIED, error.status().getReason());
    }

    @ParameterizedTest
    @EnumSource(
            value = Status.Code.class,
            names = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNKNOWN", "INTERNAL"})
    void withoutAnAnswerTheOutcomeIsUnknown(Status.Code code) {
        assertTrue(HeadwayException.from(code.toStatus().asRuntimeException()).isOutcomeUnknown());
    }

    @ParameterizedTest
    @EnumSource(
            value = Status.Code.class,
            mode = EnumSource.Mode.EXCLUDE,
            names = {"OK", "UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNKNOWN", "INTERNAL"})
    void otherCodesAreAnswersAlsoWithoutAReason(Status.Code code) {
        assertFalse(HeadwayException.from(code.toStatus().asRuntimeException()).isOutcomeUnknown());
    }

    @Test
    void aReasonSaysWhetherTheOutcomeIsKnown() {
        assertFalse(of(ErrorReason.ERROR_REASON_SHUTTING_DOWN).isOutcomeUnknown());
        assertTrue(of(ErrorReason.ERROR_REASON_OUTCOME_UNKNOWN).isOutcomeUnknown());
    }

    @Test
    void readsTheErrorOfOneMessage() {
        var status = dev.headway.v1.Status.newBuilder()
                .setCode(Status.Code.ALREADY_EXISTS.value())
                .setReason(ErrorReason.ERROR_REASON_DUPLICATE_MESSAGE)
                .putMetadata("id", "a")
                .setMessage("known");
        var error = HeadwayException.from(status.build());
        assertEquals(Status.Code.ALREADY_EXISTS, error.code());
        assertEquals(Map.of("id", "a"), error.status().getMetadataMap());
        assertEquals("known (ERROR_REASON_DUPLICATE_MESSAGE)", error.getMessage());
    }

    @Test
    void readsAReasonOfALaterVersion() {
        var error = HeadwayException.from(dev.headway.v1.Status.newBuilder().setCode(5).setReasonValue(9999).build());
        assertEquals(ErrorReason.UNRECOGNIZED, error.status().getReason());
        assertEquals(Status.Code.NOT_FOUND, error.code());
    }

    static StatusRuntimeException failure(Status.Code code, String reason) {
        return failure(code, ErrorInfo.newBuilder().setDomain("headway.v1").setReason(reason).build());
    }

    private static HeadwayException of(ErrorReason reason) {
        return HeadwayException.from(dev.headway.v1.Status.newBuilder().setReason(reason).build());
    }

    static StatusRuntimeException failure(Status.Code code, com.google.protobuf.Message... details) {
        var status = com.google.rpc.Status.newBuilder().setCode(code.value()).setMessage("no");
        for (var each : details) {
            status.addDetails(Any.pack(each));
        }
        return StatusProto.toStatusRuntimeException(status.build());
    }
}
