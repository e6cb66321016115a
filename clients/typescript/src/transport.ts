/** What every call gets, over whichever transport: a deadline, typed errors, and repeats where they are safe. */
import { create, type DescMethod, isMessage, type Message } from "@bufbuild/protobuf";
import { type Duration, durationMs } from "@bufbuild/protobuf/wkt";
import { Code, type ContextValues, createContextKey, createContextValues, type Transport } from "@connectrpc/connect";
import { HeadwayError } from "./errors.js";
import { ErrorReason } from "./gen/headway/v1/error_reason_pb.js";
import { OnDuplicate, StatusSchema } from "./gen/headway/v1/message_pb.js";
import {
  DelayRequestSchema,
  GetRequestSchema,
  type PutRequest,
  PutRequestSchema,
  PutResponseSchema,
} from "./gen/headway/v1/queue_service_pb.js";
import { backoffMs, pause } from "./timing.js";

/** How often one call is made at most, and what became of its tries. */
export interface Tries {
  most: number;
  /** A try may have taken effect and its answer was lost: the answer that came tells of that one, or of what is left. */
  isAgain: boolean;
}

const TRIES = createContextKey<Tries | undefined>(undefined, { description: "how often a call is made at most" });
const MOST_TRIES = 4;

/** Call options that bound how often the call is made: `client.queues.put(request, tries(1))` makes it once. */
export function tries(most = MOST_TRIES): { contextValues: ContextValues; tries: Tries } {
  const counted = { most, isAgain: false };
  return { contextValues: createContextValues().set(TRIES, counted), tries: counted };
}

// Calls that do no harm when made twice and whose answer says the same (section 15 of docs/protocol.md).
const SAFE = "Create Describe List Update Peek Ack Extend Withdraw Pause Resume ListDead Check GetServerInfo".split(
  " ",
);
// Calls that may have done a part even if their error says that the step did nothing.
const IN_STEPS = ["Purge", "Delete", "Repair"];

function isSafe(method: DescMethod, request: Message): boolean {
  if (isMessage(request, PutRequestSchema)) {
    return request.messages.every((message) => message.id !== "");
  }
  if (isMessage(request, GetRequestSchema)) {
    return request.attemptId !== "";
  }
  return isMessage(request, DelayRequestSchema) ? request.messageIds.length === 0 : SAFE.includes(method.name);
}

/** The transport with deadlines, repeats and HeadwayError; a call without `timeoutMs` gets `callTimeoutMs` and its `wait`. */
export function dependable(inner: Transport, callTimeoutMs: number): Transport {
  return {
    async unary(method, signal, timeoutMs, header, input, contextValues) {
      const request = create(method.input, input);
      const deadline = Date.now() + (timeoutMs ?? callTimeoutMs + waitMs(request));
      const rejecting = rejectingPut(request);
      const counted = contextValues?.get(TRIES) ?? { most: MOST_TRIES, isAgain: false };
      for (let failures = 1; ; failures++) {
        try {
          const left = Math.max(1, deadline - Date.now());
          const answer = await inner.unary(method, signal, left, header, request, contextValues);
          if (rejecting?.onDuplicate === OnDuplicate.KEEP) {
            refuseOthers(rejecting.queue, answer.message);
          }
          return answer;
        } catch (caught) {
          const error = HeadwayError.from(caught, signal);
          const delay = backoffMs(failures, error.retryAfterMs);
          const mayRepeat = isSafe(method, request) || !(error.isOutcomeUnknown || IN_STEPS.includes(method.name));
          const isOver = failures >= counted.most || Date.now() + delay >= deadline;
          if (error.code !== Code.Unavailable || !mayRepeat || isOver || !(await pause(delay, signal))) {
            throw error;
          }
          counted.isAgain ||= error.isOutcomeUnknown;
          if (rejecting && counted.isAgain) {
            rejecting.onDuplicate = OnDuplicate.KEEP; // so that what the lost try put is not refused as a duplicate
          }
        }
      }
    },
    async stream(method, signal, timeoutMs, header, input, contextValues) {
      try {
        const answer = await inner.stream(method, signal, timeoutMs, header, input, contextValues);
        return { ...answer, message: typed(answer.message, signal) };
      } catch (error) {
        throw HeadwayError.from(error, signal);
      }
    },
  };
}

async function* typed<T>(answers: AsyncIterable<T>, signal: AbortSignal | undefined): AsyncGenerator<T> {
  try {
    yield* answers;
  } catch (error) {
    throw HeadwayError.from(error, signal);
  }
}

/** How long the service may wait before it answers: the request's own `wait`. */
function waitMs(request: Message<string> & { wait?: Duration }): number {
  return request.wait ? Math.max(0, durationMs(request.wait)) : 0;
}

/** The request if it is a Put that refuses ids which are known. */
function rejectingPut(request: Message): PutRequest | undefined {
  const isPut = isMessage(request, PutRequestSchema);
  return isPut && ![OnDuplicate.KEEP, OnDuplicate.REPLACE].includes(request.onDuplicate) ? request : undefined;
}

/** Refuses what was kept for another message of the same id: that is not the lost try's own. */
function refuseOthers(queue: string, answer: Message): void {
  for (const result of isMessage(answer, PutResponseSchema) ? answer.results : []) {
    if (result.deduplicated && result.bodyDiffers) {
      const reason = ErrorReason.DUPLICATE_MESSAGE;
      const metadata = { queue, id: result.id };
      const message = "another message with this id is known";
      result.error = create(StatusSchema, { code: Code.AlreadyExists, message, reason, metadata });
    }
  }
}
