/** What can go wrong: one error for every failed call, and how it is read off the wire. */
import { durationMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from "./gen/google/rpc/error_details_pb.js";
import { ErrorReason } from "./gen/headway/v1/error_reason_pb.js";

/** One field that was refused, and why. */
export type Violation = Readonly<Record<"field" | "description", string>>;

// Codes without a reason of the service's: nobody knows whether the call took effect (P-UNKNOWN-1).
const UNKNOWN: readonly Code[] = [Code.Unavailable, Code.DeadlineExceeded, Code.Canceled, Code.Unknown, Code.Internal];

/**
 * A call that failed. `ErrorReason` tells what each reason means and promises. Where one message of a batch is refused,
 * its result says so by a `Status`, with the same code, reason and metadata.
 */
export class HeadwayError extends Error {
  override readonly name = "HeadwayError";

  constructor(
    /** The text as the service wrote it, for people; `message` has the reason before it. */
    readonly text: string,
    /** The canonical gRPC status. */
    readonly code: Code,
    /** The service's reason; UNSPECIFIED if the answer named none: the connection failed, or this client is too old. */
    readonly reason: ErrorReason = ErrorReason.UNSPECIFIED,
    /** What the reason promises, for example `queue`. */
    readonly metadata: Readonly<Record<string, string>> = {},
    /** How many milliseconds to wait before trying again, if the service said so. */
    readonly retryAfterMs?: number,
    /** The refused fields of an InvalidArgument. */
    readonly violations: readonly Violation[] = [],
    cause?: unknown,
  ) {
    super(`${reason ? ErrorReason[reason] : Code[code]}: ${text}`, { cause });
  }

  /** Whether the service gave one of these reasons. */
  is(...reasons: ErrorReason[]): boolean {
    return reasons.includes(this.reason);
  }

  /** The call may or may not have taken effect; it is safe to repeat with the same ids and leases. */
  get isOutcomeUnknown(): boolean {
    return this.reason ? this.is(ErrorReason.OUTCOME_UNKNOWN) : UNKNOWN.includes(this.code);
  }

  /** The same call may succeed later without anybody changing it: the service is away, busy or paused. */
  get isPassing(): boolean {
    // ResourceExhausted without a time is gRPC's own refusal of what is too large, now and later (P-ERR-4).
    const isBusy = (this.retryAfterMs ?? 0) > 0 || this.is(ErrorReason.QUEUE_PAUSED, ErrorReason.ROLE_IN_USE);
    return isBusy || (UNKNOWN.includes(this.code) && this.code !== Code.Canceled);
  }

  /** The typed error of whatever a transport threw; `signal` is the caller's own. */
  static from(error: unknown, signal?: AbortSignal): HeadwayError {
    if (error instanceof HeadwayError) {
      return error;
    }
    const failed = ConnectError.from(error);
    const info = failed.findDetails(ErrorInfoSchema).find((each) => each.domain === "headway.v1");
    const reason = ErrorReason[info?.reason as keyof typeof ErrorReason];
    const delay = failed.findDetails(RetryInfoSchema)[0]?.retryDelay;
    const violations = failed.findDetails(BadRequestSchema).flatMap((each) => each.fieldViolations);
    const [code, retryAfterMs] = [info ? failed.code : codeOf(failed, signal), delay && durationMs(delay)];
    return new HeadwayError(failed.rawMessage, code, reason, info?.metadata, retryAfterMs, violations, error);
  }
}

/** The status where the service gave no reason. A connection that broke is Unavailable, whatever the transport says. */
function codeOf({ code, metadata, cause, rawMessage }: ConnectError, signal?: AbortSignal): Code {
  // Canceled is gRPC's own word, for calls that a service which goes down, or is overrun, has not begun.
  const isSaid = code === Code.DeadlineExceeded || (metadata.has("grpc-status") && code !== Code.Canceled);
  // Node's errors of sockets, TLS and HTTP/2 have codes in capitals: ECONNRESET, CERT_HAS_EXPIRED, ERR_HTTP2_PING_CANCEL.
  const isNodes = /^[A-Z]+[A-Z_\d]+$/.test(String((cause as { code?: unknown } | undefined)?.code));
  // Those of fetch are TypeErrors, by its standard.
  const isBroken = isNodes || cause instanceof TypeError || code === Code.Aborted || code === Code.Canceled;
  const isTorn = /^http\/2 |^(protocol error: )?missing /.test(rawMessage);
  return isSaid ? code : signal?.aborted ? Code.Canceled : isBroken || isTorn ? Code.Unavailable : code;
}
