/** What can go wrong: one error for every failed call, and how it is read off the wire. */
import { durationMs } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError } from "@connectrpc/connect";
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from "./gen/google/rpc/error_details_pb.js";
import { ErrorReason } from "./gen/headway/v1/error_reason_pb.js";
import type { Status } from "./gen/headway/v1/message_pb.js";

/** One field that was refused, and why. */
export interface Violation {
  readonly field: string;
  readonly description: string;
}

/** What an error knows besides its text and code. */
export interface Facts extends ErrorOptions {
  reason?: ErrorReason;
  metadata?: Record<string, string>;
  retryAfterMs?: number | undefined;
  violations?: readonly Violation[];
}

// Codes without a reason of the service's: nobody knows whether the call took effect (P-UNKNOWN-1).
const UNKNOWN: readonly Code[] = [Code.Unavailable, Code.DeadlineExceeded, Code.Canceled, Code.Unknown, Code.Internal];

/** A call, or one message of a batch, that failed. Of the reasons and their metadata tells `ErrorReason`. */
export class HeadwayError extends Error {
  override readonly name = "HeadwayError";
  /** The service's reason; UNSPECIFIED if the answer named none: the connection failed, or this client is too old. */
  readonly reason: ErrorReason;
  /** What the reason promises, for example `queue`. */
  readonly metadata: Readonly<Record<string, string>>;
  /** How many milliseconds to wait before trying again, if the service said so. */
  readonly retryAfterMs: number | undefined;
  /** The refused fields of an InvalidArgument. */
  readonly violations: readonly Violation[];

  constructor(
    /** The text as the service wrote it, for people; `message` has the reason before it. */
    readonly text: string,
    /** The canonical gRPC status. */
    readonly code: Code,
    facts: Facts = {},
  ) {
    super(`${facts.reason ? ErrorReason[facts.reason] : Code[code]}: ${text}`, facts);
    this.reason = facts.reason ?? ErrorReason.UNSPECIFIED;
    this.metadata = facts.metadata ?? {};
    this.retryAfterMs = facts.retryAfterMs;
    this.violations = facts.violations ?? [];
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
    return !LASTING.includes(this.code) && !this.is(ErrorReason.QUEUE_CLOSED, ErrorReason.QUEUE_DRAINED);
  }

  /** The typed error of whatever a transport threw; `signal` is the caller's own. */
  static from(error: unknown, signal?: AbortSignal): HeadwayError {
    if (error instanceof HeadwayError) {
      return error;
    }
    const failed = ConnectError.from(error);
    const info = failed.findDetails(ErrorInfoSchema).find((each) => each.domain === "headway.v1");
    const delay = failed.findDetails(RetryInfoSchema)[0]?.retryDelay;
    return new HeadwayError(failed.rawMessage, codeOf(failed, signal), {
      cause: error,
      reason: ErrorReason[(info?.reason ?? "UNSPECIFIED") as keyof typeof ErrorReason] ?? ErrorReason.UNSPECIFIED,
      metadata: { ...info?.metadata },
      retryAfterMs: delay && durationMs(delay),
      violations: failed.findDetails(BadRequestSchema).flatMap((each) => each.fieldViolations),
    });
  }

  /** The typed error of one message of a batch. */
  static fromStatus(status: Status): HeadwayError {
    return new HeadwayError(status.message, status.code, { reason: status.reason, metadata: { ...status.metadata } });
  }
}

const LASTING: readonly Code[] = [
  Code.NotFound,
  Code.InvalidArgument,
  Code.Unauthenticated,
  Code.PermissionDenied,
  Code.Unimplemented,
];

/** The status of a failed call. A connection that broke is Unavailable, whatever the transport says of the stream. */
function codeOf(failed: ConnectError, signal: AbortSignal | undefined): Code {
  if (failed.metadata.has("grpc-status") || failed.code === Code.DeadlineExceeded) {
    return failed.code; // the service's own word
  }
  if (signal?.aborted) {
    return Code.Canceled;
  }
  const isBroken = failed.code === Code.Aborted || failed.code === Code.Canceled;
  const isTorn = /^http\/2 stream closed|^protocol error: missing|^ERR_HTTP2|session/i.test(failed.rawMessage);
  return isBroken || isTorn || hasNodeCode(failed.cause) ? Code.Unavailable : failed.code;
}

/** Node's errors of sockets and of HTTP/2 have codes in capitals, such as ECONNRESET or ERR_HTTP2_STREAM_ERROR. */
function hasNodeCode(cause: unknown): boolean {
  return cause instanceof Error && "code" in cause && /^E[A-Z]+_?/.test(String(cause.code));
}
