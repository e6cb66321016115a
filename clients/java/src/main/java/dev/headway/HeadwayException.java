package dev.headway;

import com.google.rpc.*;
import dev.headway.v1.ErrorReason;
import dev.headway.v1.Status;
import io.grpc.Status.Code;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.util.List;

/**
 * A call, or one message of a batch, that failed.
 *
 * <p>Compare the reason of its {@link #status()}; texts are for people and may change. The reasons, and the metadata
 * that each one promises, are told at {@link ErrorReason}.
 */
@SuppressWarnings("serial") // it cannot be serialized, as those of gRPC, its causes, cannot
public final class HeadwayException extends RuntimeException {
    private final Status status;
    private final com.google.rpc.Status details;

    private HeadwayException(Status status, com.google.rpc.Status details, Throwable cause) {
        super(status.getMessage() + (status.getReasonValue() == 0 ? "" : " (" + status.getReason() + ")"), cause);
        this.status = status;
        this.details = details;
    }

    /**
     * The typed error of what a stub threw.
     *
     * @param error what was thrown
     * @return the error with the reason, metadata and so on that the service gave
     */
    public static HeadwayException from(StatusRuntimeException error) {
        var details = io.grpc.protobuf.StatusProto.fromThrowable(error);
        var info = find(details, ErrorInfo.getDefaultInstance());
        var known = ErrorReason.getDescriptor().findValueByName("ERROR_REASON_" + info.getReason());
        var status = Status.newBuilder().setCode(details.getCode()).setMessage(error.getMessage());
        if (known != null && info.getDomain().equals("headway.v1")) {
            status.setReasonValue(known.getNumber()).putAllMetadata(info.getMetadataMap());
        }
        return new HeadwayException(status.build(), details, error);
    }

    /**
     * The typed error of one message of a batch.
     *
     * @param status the {@code error} of a result
     * @return the same, as the call would have failed with it
     */
    public static HeadwayException from(Status status) {
        return new HeadwayException(status, com.google.rpc.Status.getDefaultInstance(), null);
    }

    /** What a lease is told that has no say any more: GONE, or else STALE. */
    static HeadwayException tooLate(boolean isGone, String text) {
        var reason = isGone ? ErrorReason.ERROR_REASON_LEASE_GONE : ErrorReason.ERROR_REASON_LEASE_STALE;
        var code = isGone ? Code.NOT_FOUND : Code.FAILED_PRECONDITION;
        return from(Status.newBuilder().setCode(code.value()).setReason(reason).setMessage(text).build());
    }

    /**
     * The canonical gRPC code.
     *
     * @return never {@code OK}
     */
    public Code code() {
        return io.grpc.Status.fromCodeValue(status.getCode()).getCode();
    }

    /**
     * Why, in the service's words, and the metadata that the reason promises.
     *
     * @return with {@code ERROR_REASON_UNSPECIFIED} if the answer named none: the connection failed, or this client
     *     does not know the reason
     */
    public Status status() {
        return status;
    }

    /**
     * How long to wait before trying again.
     *
     * @return zero if the service did not say
     */
    public Duration retryAfter() {
        var delay = find(details, RetryInfo.getDefaultInstance()).getRetryDelay();
        return Duration.ofSeconds(delay.getSeconds(), delay.getNanos());
    }

    /**
     * The refused fields of an INVALID_ARGUMENT, and why each was.
     *
     * @return empty for all other codes
     */
    public List<BadRequest.FieldViolation> violations() {
        return find(details, BadRequest.getDefaultInstance()).getFieldViolationsList();
    }

    /**
     * Whether the call may or may not have taken effect: it is safe to repeat with the same ids and leases.
     *
     * @return true for OUTCOME_UNKNOWN, and without a reason of the service for UNAVAILABLE, DEADLINE_EXCEEDED,
     *     CANCELLED, INTERNAL and UNKNOWN: no answer came
     */
    public boolean isOutcomeUnknown() {
        var lost = List.of(Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.CANCELLED, Code.INTERNAL, Code.UNKNOWN);
        boolean isLost = status.getReasonValue() == 0 && lost.contains(code());
        return isLost || status.getReason() == ErrorReason.ERROR_REASON_OUTCOME_UNKNOWN;
    }

    /** The first detail of a kind; one that is absent or cannot be read leaves the code to speak. */
    private static <T extends com.google.protobuf.Message> T find(com.google.rpc.Status details, T absent) {
        try {
            var found = details.getDetailsList().stream().filter(each -> each.isSameTypeAs(absent)).findFirst();
            return found.isPresent() ? found.get().unpackSameTypeAs(absent) : absent;
        } catch (com.google.protobuf.InvalidProtocolBufferException unreadable) {
            return absent;
        }
    }
}
