/** What every call gets, over whichever transport: a deadline, typed errors, and repeats where they are safe. */
import { create, type DescMethod, isMessage, type Message } from "@bufbuild/protobuf";
import { type Duration, durationMs } from "@bufbuild/protobuf/wkt";
import { Code, createContextKey, type Transport } from "@connectrpc/connect";
import { findTrailerError } from "@connectrpc/connect/protocol-grpc";
import { HeadwayError } from "./errors.js";
import { ErrorReason } from "./gen/headway/v1/error_reason_pb.js";
import { OnDuplicate, StatusSchema } from "./gen/headway/v1/message_pb.js";
import * as v1 from "./gen/headway/v1/queue_service_pb.js";
import { backoffMs, link, pause } from "./timing.js";

/** The key of a call's context value that says how often it is made at most: 4 times unless that is set. */
export const mostTries = createContextKey(4, { description: "how often a call is made at most" });

// Calls that do no harm when made twice and whose answer says the same (section 15 of docs/protocol.md).
const SAFE = "Create Describe List Update Peek Ack Extend Withdraw Pause Resume ListDead Check GetServerInfo".split(
  " ",
);

function isSafe(method: DescMethod, request: Message): boolean {
  if (isMessage(request, v1.PutRequestSchema)) {
    return request.messages.every((message) => message.id !== "");
  }
  if (isMessage(request, v1.GetRequestSchema)) {
    return request.attemptId !== "";
  }
  return isMessage(request, v1.DelayRequestSchema) ? !request.messageIds.length : SAFE.includes(method.name);
}

/**
 * The transport with HeadwayError, repeats and deadlines: a call without one gets `callTimeoutMs` and its `wait`. All
 * calls are cancelled when `closed` is aborted.
 */
export function dependable(inner: Transport, callTimeoutMs: number, closed: AbortSignal): Transport {
  return {
    async unary(method, given, timeoutMs, header, input, values) {
      const request = create(method.input, input) as Message & { wait?: Duration };
      const deadline = Date.now() + (timeoutMs ?? callTimeoutMs + (request.wait ? durationMs(request.wait) : 0));
      const most = isSafe(method, request) ? (values?.get(mostTries) ?? 4) : 1;
      const put = isMessage(request, v1.PutRequestSchema) && request.onDuplicate <= OnDuplicate.REJECT && request;
      const { signal, unlink } = link(given, closed);
      let lost: HeadwayError | undefined; // of a try that may have taken effect: it is not hidden by a later one's
      try {
        for (let count = 1; ; count++) {
          const left = Math.max(1, Math.ceil(deadline - Date.now())); // the wire knows whole milliseconds only
          try {
            const answer = await inner.unary(method, signal, left, header, request as typeof input, values);
            return put && lost ? refuseOthers(put.queue, answer) : answer;
          } catch (caught) {
            const error = HeadwayError.from(caught, signal);
            const delay = backoffMs(count, error.retryAfterMs);
            if (error.code !== Code.Unavailable) {
              throw error;
            }
            lost = error.isOutcomeUnknown ? error : lost;
            if (count >= most || Date.now() + delay >= deadline || !(await pause(delay, signal))) {
              throw signal.aborted ? HeadwayError.from(signal.reason, signal) : (lost ?? error);
            }
            if (put && lost) {
              put.onDuplicate = OnDuplicate.KEEP; // what the lost try put is not to be refused as a duplicate
            }
          }
        }
      } finally {
        unlink();
      }
    },
    stream(method, given, ...rest) {
      const { signal, unlink } = link(given, closed);
      const opened = inner.stream(method, signal, ...rest).then(
        (answer) => ({ ...answer, message: typed(answer, signal, unlink) }),
        (error) => {
          unlink();
          throw HeadwayError.from(error, signal);
        },
      );
      opened.catch(() => undefined); // whoever reads the stream is told, however late that is
      return opened;
    },
  };
}

type Streamed<T> = { message: AsyncIterable<T>; trailer: Headers };

async function* typed<T>(answer: Streamed<T>, signal: AbortSignal, unlink: () => void): AsyncGenerator<T> {
  try {
    yield* answer.message;
  } catch (error) {
    // Node calls it a premature close if the service ends a stream first, although it said how it ended.
    if (answer.trailer.get("grpc-status") !== "0") {
      throw HeadwayError.from(findTrailerError(answer.trailer) ?? error, signal);
    }
  } finally {
    unlink();
  }
}

/** The answer, in which what was kept for another message of the same id is refused: that is not the lost try's own. */
function refuseOthers<T extends { message: Message }>(queue: string, answer: T): T {
  const why = {
    code: Code.AlreadyExists,
    message: "another message has this id",
    reason: ErrorReason.DUPLICATE_MESSAGE,
  };
  for (const result of (answer.message as v1.PutResponse).results.filter((each) => each.bodyDiffers)) {
    result.error = create(StatusSchema, { ...why, metadata: { queue, id: result.id } });
  }
  return answer;
}
