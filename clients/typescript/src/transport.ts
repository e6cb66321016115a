/** What every call gets, over whichever transport: a deadline, typed errors, and repeats where they are safe. */
import { clone, create, type DescMessage, type DescMethod, isMessage, type Message } from "@bufbuild/protobuf";
import { type Duration, durationMs } from "@bufbuild/protobuf/wkt";
import { Code, type Transport } from "@connectrpc/connect";
import { findTrailerError } from "@connectrpc/connect/protocol-grpc";
import { HeadwayError } from "./errors.js";
import { backoffMs, pause, span } from "./timing.js";
import { ErrorReason, GetRequestSchema, OnDuplicate, PutRequestSchema } from "./v1.js";

// Calls that do no harm when made twice and whose answer says the same (section 15 of docs/protocol.md). That of
// Withdraw does not: the message is finished, although the first try did it.
const SAFE = /^(Create|Describe|List(Dead|Leased)?|Update|Peek|Ack|Delay|Extend|Put|Pause|Resume|Check|GetServerInfo)$/;

// Codes of a repeat that tell what became of the try before it, too; the last is the caller's own. With any other it
// was refused unseen, or not answered.
const TELLING: readonly Code[] = [Code.NotFound, Code.AlreadyExists, Code.InvalidArgument, Code.Canceled];

/** Codes that end what was served when a token expires, or a grant changes; the token of now may have it go on. */
export const OF_CALLERS: readonly Code[] = [Code.Unauthenticated, Code.PermissionDenied];

/** Requests that were made again although an earlier try may have been served, as their callers gave them. */
export const repeated = new WeakSet<object>();

/** Whether a call that failed may be made again: it reads, or names its effect. */
function isSafe(method: DescMethod, request: Message): boolean {
  const isUnnamed = isMessage(request, PutRequestSchema) && request.messages.some(({ id }) => !id);
  return isMessage(request, GetRequestSchema) ? request.attemptId !== "" : SAFE.test(method.name) && !isUnnamed;
}

/** The transport with HeadwayError, repeats and deadlines: a call without one gets `callTimeoutMs` and its `wait`. */
export function dependable(inner: Transport, callTimeoutMs: number): Transport {
  return {
    async unary(method, signal, timeoutMs, header, input, values) {
      let request = create(method.input, input) as Message & { wait?: Duration };
      const waitMs = request.wait ? durationMs(request.wait) : 0;
      const waitedAt = Date.now() + waitMs;
      const deadline = timeoutMs === undefined ? waitedAt + callTimeoutMs : Date.now() + timeoutMs;
      let lost: HeadwayError | undefined; // of the first try that may have taken effect: no later one's hides it
      for (let failures = 1; ; failures++) {
        try {
          const from = Math.max(Date.now(), waitedAt);
          // Leaves time for another try; the service answers within 2 s after the wait.
          const most = isSafe(method, request) ? Math.min(deadline - from, callTimeoutMs) / 2 : deadline;
          const left = Math.ceil(Math.min(deadline, from + Math.max(most, 2_000)) - Date.now()); // the wire's are whole
          return await inner.unary(method, signal, Math.max(1, left), header, request as typeof input, values);
        } catch (caught) {
          const error = HeadwayError.from(caught, signal);
          const delay = backoffMs(failures, error.retryAfterMs);
          const isExpired = waitMs > 0 && failures === 1 && method.name === "Get" && OF_CALLERS.includes(error.code);
          const isAway = isExpired || error.code === Code.Unavailable || error.code === Code.DeadlineExceeded;
          if (!isAway || !isSafe(method, request) || Date.now() + delay >= deadline) {
            // That nothing is left tells what became of a Get before it, too.
            throw (!TELLING.includes(error.code) && !error.is(ErrorReason.QUEUE_DRAINED) && lost) || error;
          }
          lost ??= error.isOutcomeUnknown ? error : undefined;
          void (lost && repeated.add(input));
          await pause(delay, signal);
          const left = request.wait && { wait: span(Math.max(0, waitedAt - Date.now())) };
          // What the first try put stays. So does the caller's own request, as it is.
          const isKept = lost && isMessage(request, PutRequestSchema) && request.onDuplicate < OnDuplicate.KEEP;
          const kept = isKept && { onDuplicate: OnDuplicate.KEEP };
          request = Object.assign(clone<DescMessage>(method.input, request), left, kept);
        }
      }
    },
    stream(method, signal, ...rest) {
      const opened = inner.stream(method, signal, ...rest).then(
        (answer) => ({ ...answer, message: typed(answer, signal) }),
        (error) => Promise.reject(HeadwayError.from(error, signal)),
      );
      opened.catch(() => undefined); // whoever reads the stream is told, however late that is
      return opened;
    },
  };
}

async function* typed<T>({ message, trailer }: { message: AsyncIterable<T>; trailer: Headers }, signal?: AbortSignal) {
  try {
    yield* message;
  } catch (error) {
    // Node calls it a premature close if the service ends a stream first, although it said how it ended.
    if (trailer.get("grpc-status") !== "0") {
      throw HeadwayError.from(findTrailerError(trailer) ?? error, signal);
    }
  }
}
