package dev.headway;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.rpc.BadRequest;
import com.google.rpc.BadRequest.FieldViolation;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import dev.headway.v1.ErrorReason;
import io.grpc.Status;
import io.grpc.protobuf.StatusProto;
import java.time.Duration;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;

/**
 * A call, or one message of a batch, that failed.
 *
 * <p>Compare the {@link #reason()}; texts are for people and may change. The reasons, and the metadata that each one
 * promises, are told at {@link ErrorReason}.
 */
@SuppressWarnings("serial") // it cannot be serialized, as those of gRPC, its causes, cannot
public final class HeadwayException extends RuntimeException {
    private static final String DOMAIN = "headway.v1";
    private static final String PREFIX = "ERROR_REASON_";

    // Without a reason of the service: codes with which gRPC itself tells that no answer came.
    private static final Set<Status.Code> UNANSWERED = EnumSet.of(
            Status.Code.UNAVAILABLE,
            Status.Code.DEADLINE_EXCEEDED,
            Status.Code.CANCELLED,
            Status.Code.UNKNOWN,
            Status.Code.INTERNAL);
    private static final Set<Status.Code> LASTING = EnumSet.of(
            Status.Code.NOT_FOUND,
            Status.Code.INVALID_ARGUMENT,
            Status.Code.UNAUTHENTICATED,
            Status.Code.PERMISSION_DENIED,
            Status.Code.UNIMPLEMENTED);

    private final Status.Code code;
    private final ErrorReason reason;
    private final Map<String, String> metadata;
    private final Duration retryAfter; // null: none was told
    private final List<FieldViolation> violations;

    HeadwayException(Status status, ErrorReason reason, Map<String, String> metadata, List<Any> details) {
        super(text(status, reason), status.getCause());
        this.code = status.getCode();
        this.reason = reason;
        this.metadata = metadata;
        retryAfter = find(details, RetryInfo.class).map(each -> Spans.read(each.getRetryDelay())).orElse(null);
        violations = find(details, BadRequest.class).map(BadRequest::getFieldViolationsList).orElse(List.of());
    }

    /**
     * The typed error of what a stub threw.
     *
     * @param error what was thrown: usually a {@link io.grpc.StatusRuntimeException}
     * @return the error with the reason, metadata and so on that the service gave; one that is typed already as it is
     */
    public static HeadwayException from(Throwable error) {
        if (error instanceof HeadwayException typed) {
            return typed;
        }
        var told = StatusProto.fromThrowable(error);
        var details = told == null ? List.<Any>of() : told.getDetailsList();
        var info = find(details, ErrorInfo.class)
                .filter(each -> each.getDomain().equals(DOMAIN))
                .orElse(ErrorInfo.getDefaultInstance());
        var known = ErrorReason.getDescriptor().findValueByName(PREFIX + info.getReason());
        var reason = known == null ? ErrorReason.ERROR_REASON_UNSPECIFIED : ErrorReason.valueOf(known);
        var status = Status.fromThrowable(error).withCause(error);
        return new HeadwayException(status, reason, info.getMetadataMap(), details);
    }

    /**
     * The typed error of one message of a batch.
     *
     * @param status the {@code error} of a result
     * @return the same, as the call would have failed with it
     */
    public static HeadwayException from(dev.headway.v1.Status status) {
        var code = Status.fromCodeValue(status.getCode()).withDescription(status.getMessage());
        return new HeadwayException(code, status.getReason(), status.getMetadataMap(), List.of());
    }

    /**
     * The canonical gRPC status.
     *
     * @return never {@code OK}
     */
    public Status.Code code() {
        return code;
    }

    /**
     * Why, in the service's words.
     *
     * @return {@code ERROR_REASON_UNSPECIFIED} if the answer named none: the connection failed, or this client does not
     *     know the reason
     */
    public ErrorReason reason() {
        return reason;
    }

    /**
     * Whether it is for one of these reasons.
     *
     * @param reasons those to compare with
     * @return true if {@link #reason()} is among them
     */
    public boolean is(ErrorReason... reasons) {
        return Arrays.asList(reasons).contains(reason);
    }

    /**
     * What the reason promises.
     *
     * @return for example {@code queue}; empty if nothing was told
     */
    public Map<String, String> metadata() {
        return metadata;
    }

    /**
     * How long to wait before trying again.
     *
     * @return empty if the service did not say
     */
    public Optional<Duration> retryAfter() {
        return Optional.ofNullable(retryAfter);
    }

    /**
     * The refused fields of an INVALID_ARGUMENT, and why each was.
     *
     * @return empty for all other codes
     */
    public List<FieldViolation> violations() {
        return violations;
    }

    /**
     * Whether the call may or may not have taken effect: it is safe to repeat with the same ids and leases.
     *
     * @return true for OUTCOME_UNKNOWN, and if no answer of the service came at all
     */
    public boolean isOutcomeUnknown() {
        return reason == ErrorReason.ERROR_REASON_UNSPECIFIED
                ? UNANSWERED.contains(code)
                : reason == ErrorReason.ERROR_REASON_OUTCOME_UNKNOWN;
    }

    /** The same call may succeed later without anybody changing it: the service is away, busy or paused. */
    boolean isPassing() {
        return !LASTING.contains(code)
                && !is(ErrorReason.ERROR_REASON_QUEUE_CLOSED, ErrorReason.ERROR_REASON_QUEUE_DRAINED);
    }

    /** It was not served, or no answer came, but for a cancellation, which is somebody's will. */
    boolean isUnserved() {
        return code == Status.Code.UNAVAILABLE || (isOutcomeUnknown() && code != Status.Code.CANCELLED);
    }

    private static String text(Status status, ErrorReason reason) {
        boolean hasReason = reason != ErrorReason.ERROR_REASON_UNSPECIFIED;
        var label = hasReason ? reason.name().replace(PREFIX, "") : status.getCode().name();
        return status.getDescription() == null ? label : label + ": " + status.getDescription();
    }

    private static <T extends Message> Optional<T> find(List<Any> details, Class<T> kind) {
        try {
            for (var each : details) {
                if (each.is(kind)) {
                    return Optional.of(each.unpack(kind));
                }
            }
        } catch (InvalidProtocolBufferException unreadable) {
            // The canonical code is left to speak.
        }
        return Optional.empty();
    }
}
