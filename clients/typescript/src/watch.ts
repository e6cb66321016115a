/** Watches messages until each has ended, and asks anew wherever a stream breaks. */
import { timestampDate } from "@bufbuild/protobuf/wkt";
import { Code } from "@connectrpc/connect";
import { HeadwayError } from "./errors.js";
import { ErrorReason } from "./gen/headway/v1/error_reason_pb.js";
import type { WatchPositionResponse } from "./gen/headway/v1/queue_service_pb.js";
import type { Queue } from "./queue.js";
import { anyOf, backoffMs, pause } from "./timing.js";

/** How messages are watched. */
export interface WatchOptions {
  /** Whoever stops watching withdraws those that still wait or are delayed; a connection that breaks does so, too. */
  attended?: boolean;
  signal?: AbortSignal;
}

/** See `Queue.watch`. */
export async function* watch(
  queue: Queue,
  ids: readonly string[],
  { attended, signal }: WatchOptions,
): AsyncGenerator<WatchPositionResponse, void> {
  const told = new Map<string, number>(ids.map((id) => [id, 0])); // when what was said of those left was true
  let giveUpAt = Date.now() + queue.client.callTimeoutMs; // until the first answer of all
  for (let failures = 0; told.size > 0; ) {
    const ended = new AbortController();
    const until = queue.client.until(anyOf(signal, ended.signal));
    const silent = setTimeout(() => ended.abort(), queue.client.callTimeoutMs); // for a first answer that never comes
    let failure = new HeadwayError("the stream ended before its last message", Code.Unavailable);
    try {
      const messages = { ids: [...told.keys()], attended };
      const request = { queue: queue.name, subject: { case: "messages" as const, value: messages } };
      for await (const answer of queue.client.queues.watchPosition(request, { signal: until })) {
        clearTimeout(silent);
        [failures, giveUpAt] = [0, Number.POSITIVE_INFINITY];
        if (isNews(answer, told)) {
          yield answer;
        }
      }
    } catch (error) {
      failure = HeadwayError.from(error, until);
      if (!failure.isPassing || queue.client.until(signal).aborted) {
        throw failure;
      }
    } finally {
      clearTimeout(silent);
      ended.abort();
    }
    const delay = told.size > 0 ? backoffMs(++failures, failure.retryAfterMs) : 0;
    if (Date.now() + delay >= giveUpAt) {
      throw failure;
    }
    await pause(delay, queue.client.until(signal));
  }
}

/** Notes what was told of a message; false if it is older than what was told before, or about nobody who is left. */
function isNews(answer: WatchPositionResponse, told: Map<string, number>): boolean {
  const id = idOf(answer);
  const before = told.get(id);
  const asOf = answer.asOf ? timestampDate(answer.asOf).getTime() : Number.POSITIVE_INFINITY;
  if (before === undefined || (asOf < before && answer.event.case !== "finished")) {
    return false;
  }
  told.set(id, asOf);
  return answer.event.case !== "finished" || told.delete(id);
}

/** The id of the message that an answer is about; "" if it is about none. */
function idOf({ event }: WatchPositionResponse): string {
  if (event.case === "position") {
    return event.value.subject.case === "id" ? event.value.subject.value : "";
  }
  return event.case === "leased" || event.case === "finished" ? event.value.id : "";
}
