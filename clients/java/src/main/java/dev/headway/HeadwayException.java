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
public final class HeadwayException extends RuntimeException {
    private static final long serialVersionUID = 1;
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

    /** What the service says of a failed call, beside its status. */
    private record Details(
            ErrorReason reason, Map<String, String> metadata, Duration retryAfter, List<FieldViolation> violations) {
        private static final Details NONE =
                new Details(ErrorReason.ERROR_REASON_UNSPECIFIED, Map.of(), null, List.of());
    }

    private final Status.Code code;
    private final transient Details details;

    private HeadwayException(Status status, Details details, Throwable cause) {
        super(text(status, details.reason), cause);
        this.code = status.getCode();
        this.details = details;
    }

    HeadwayException(Status status) {
        this(status, Details.NONE, status.getCause());
    }

    HeadwayException(Status.Code code, ErrorReason reason, Map<String, String> metadata, String text) {
        this(code.toStatus().withDescription(text), new Details(reason, metadata, null, List.of()), null);
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
        return new HeadwayException(Status.fromThrowable(error), read(error), error);
    }

    /**
     * The typed error of one message of a batch.
     *
     * @param status the {@code error} of a result
     * @return the same, as the call would have failed with it
     */
    public static HeadwayException from(dev.headway.v1.Status status) {
        var code = Status.fromCodeValue(status.getCode()).getCode();
        var reason = status.getReason() == ErrorReason.UNRECOGNIZED
                ? ErrorReason.ERROR_REASON_UNSPECIFIED
                : status.getReason();
        return new HeadwayException(code, reason, status.getMetadataMap(), status.getMessage());
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
        return details().reason;
    }

    /**
     * Whether it is for one of these reasons.
     *
     * @param reasons those to compare with
     * @return true if {@link #reason()} is among them
     */
    public boolean is(ErrorReason... reasons) {
        return Arrays.asList(reasons).contains(reason());
    }

    /**
     * What the reason promises.
     *
     * @return for example {@code queue}; empty if nothing was told
     */
    public Map<String, String> metadata() {
        return details().metadata;
    }

    /**
     * How long to wait before trying again.
     *
     * @return empty if the service did not say
     */
    public Optional<Duration> retryAfter() {
        return Optional.ofNullable(details().retryAfter);
    }

    /**
     * The refused fields of an INVALID_ARGUMENT, and why each was.
     *
     * @return empty for all other codes
     */
    public List<FieldViolation> violations() {
        return details().violations;
    }

    /**
     * Whether the call may or may not have taken effect: it is safe to repeat with the same ids and leases.
     *
     * @return true for OUTCOME_UNKNOWN, and if no answer of the service came at all
     */
    public boolean isOutcomeUnknown() {
        return reason() == ErrorReason.ERROR_REASON_UNSPECIFIED
                ? UNANSWERED.contains(code)
                : is(ErrorReason.ERROR_REASON_OUTCOME_UNKNOWN);
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

    private Details details() {
        return details == null ? Details.NONE : details; // null: it came out of a stream of serialized objects
    }

    private static String text(Status status, ErrorReason reason) {
        var label = reason == ErrorReason.ERROR_REASON_UNSPECIFIED
                ? status.getCode().name()
                : reason.name().substring(PREFIX.length());
        return status.getDescription() == null ? label : label + ": " + status.getDescription();
    }

    private static Details read(Throwable error) {
        var status = StatusProto.fromThrowable(error);
        if (status == null) {
            return Details.NONE;
        }
        var packed = status.getDetailsList();
        var info = find(packed, ErrorInfo.class).filter(each -> each.getDomain().equals(DOMAIN));
        return new Details(
                info.map(each -> reason(each.getReason())).orElse(ErrorReason.ERROR_REASON_UNSPECIFIED),
                info.map(ErrorInfo::getMetadataMap).orElse(Map.of()),
                find(packed, RetryInfo.class).map(each -> Spans.read(each.getRetryDelay())).orElse(null),
                find(packed, BadRequest.class).map(BadRequest::getFieldViolationsList).orElse(List.of()));
    }

    private static <T extends Message> Optional<T> find(List<Any> packed, Class<T> kind) {
        try {
            for (var each : packed) {
                if (each.is(kind)) {
                    return Optional.of(each.unpack(kind));
                }
            }
        } catch (InvalidProtocolBufferException unreadable) {
            // The canonical code is left to speak.
        }
        return Optional.empty();
    }

    private static ErrorReason reason(String name) {
        var value = ErrorReason.getDescriptor().findValueByName(PREFIX + name);
        return value == null ? ErrorReason.ERROR_REASON_UNSPECIFIED : ErrorReason.forNumber(value.getNumber());
    }
}
