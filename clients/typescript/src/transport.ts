/** What every call gets, over whichever transport: a deadline, typed errors, and repeats where they are safe. */
import { create, type DescMethod, isMessage, type Message } from "@bufbuild/protobuf";
import { type Duration, durationMs } from "@bufbuild/protobuf/wkt";
import { Code, type Transport } from "@connectrpc/connect";
import { findTrailerError } from "@connectrpc/connect/protocol-grpc";
import { HeadwayError } from "./errors.js";
import { OnDuplicate } from "./gen/headway/v1/message_pb.js";
import { GetRequestSchema, PutRequestSchema } from "./gen/headway/v1/queue_service_pb.js";
import { backoffMs, pause } from "./timing.js";

// Calls that do no harm when made twice and whose answer says the same (section 15 of docs/protocol.md). That of
// Withdraw does not: the message is finished, although the first try did it.
const SAFE = /^(Create|Describe|List(Dead|Leased)?|Update|Peek|Ack|Delay|Extend|Put|Pause|Resume|Check|GetServerInfo)$/;

// Codes of a repeat that tell what became of the try before it, too; the last is the caller's own. With any other it
// was refused unseen, or not answered.
const TELLING: readonly Code[] = [Code.NotFound, Code.AlreadyExists, Code.InvalidArgument, Code.Canceled];

/** Whether a call that failed may be made again: it reads, or names its effect. */
function isSafe(method: DescMethod, request: Message): boolean {
  const isUnnamed = isMessage(request, PutRequestSchema) && request.messages.some(({ id }) => !id);
  return isMessage(request, GetRequestSchema) ? request.attemptId !== "" : SAFE.test(method.name) && !isUnnamed;
}

/** The transport with HeadwayError, repeats and deadlines: a call without one gets `callTimeoutMs` and its `wait`. */
export function dependable(inner: Transport, callTimeoutMs: number): Transport {
  return {
    async unary(method, signal, timeoutMs, header, input, values) {
      const request = create(method.input, input) as Message & { wait?: Duration };
      const deadline = Date.now() + (timeoutMs ?? callTimeoutMs + (request.wait ? durationMs(request.wait) : 0));
      let lost: HeadwayError | undefined; // of the first try that may have taken effect: no later one's hides it
      for (let failures = 1; ; failures++) {
        try {
          const left = Math.max(1, Math.ceil(deadline - Date.now())); // the wire knows whole milliseconds only
          return await inner.unary(method, signal, left, header, request as typeof input, values);
        } catch (caught) {
          const error = HeadwayError.from(caught, signal);
          const delay = backoffMs(failures, error.retryAfterMs);
          if (error.code !== Code.Unavailable || !isSafe(method, request) || Date.now() + delay >= deadline) {
            throw (!TELLING.includes(error.code) && lost) || error;
          }
          lost ??= error.isOutcomeUnknown ? error : undefined;
          await pause(delay, signal);
          if (lost && isMessage(request, PutRequestSchema)) {
            request.onDuplicate = Math.max(request.onDuplicate, OnDuplicate.KEEP); // what the first try put stays
          }
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

type Streamed<T> = { message: AsyncIterable<T>; trailer: Headers };

async function* typed<T>({ message, trailer }: Streamed<T>, signal?: AbortSignal): AsyncGenerator<T> {
  try {
    yield* message;
  } catch (error) {
    // Node calls it a premature close if the service ends a stream first, although it said how it ended.
    if (trailer.get("grpc-status") !== "0") {
      throw HeadwayError.from(findTrailerError(trailer) ?? error, signal);
    }
  }
}
