/** Watches messages until each has ended, and asks anew wherever a stream breaks. */
import { timestampMs } from "@bufbuild/protobuf/wkt";
import { Code } from "@connectrpc/connect";
import { HeadwayError } from "./errors.js";
import type { WatchPositionResponse } from "./gen/headway/v1/queue_service_pb.js";
import type { Queue } from "./queue.js";
import { backoffMs, link, pause } from "./timing.js";

/** How messages are watched. */
export interface WatchOptions {
  /** Whoever stops watching withdraws those that still wait or are delayed; a connection that breaks does so, too. */
  attended?: boolean;
  /** Ends the watch, which then throws a HeadwayError with the code Canceled. */
  signal?: AbortSignal;
}

/** See `Queue.watch`. */
export async function* watch(
  queue: Queue,
  ids: readonly string[],
  options: WatchOptions,
): AsyncGenerator<WatchPositionResponse, void> {
  const { client, name } = queue;
  const told = new Map(ids.map((id) => [id, 0])); // when what was said of each that has not ended was true
  const left = new AbortController(); // Connect does not end a stream whose loop is left
  const { signal, unlink } = link(options.signal, left.signal, client.closing);
  let giveUpAt = Date.now() + client.callTimeoutMs; // before the first answer of all; later never
  try {
    for (let failures = 1; told.size > 0; failures++) {
      let failure = new HeadwayError("the stream ended before its last message", Code.Unavailable);
      try {
        const value = { ids: [...told.keys()], attended: options.attended };
        const subject = { case: "messages" as const, value };
        for await (const answer of client.queues.watchPosition({ queue: name, subject }, { signal })) {
          [failures, giveUpAt] = [1, Number.POSITIVE_INFINITY];
          if (isNews(answer, told)) {
            yield answer;
          }
        }
      } catch (error) {
        failure = HeadwayError.from(error, signal);
      }
      const delay = backoffMs(failures, failure.retryAfterMs);
      const isOver = !failure.isPassing || Date.now() + delay >= giveUpAt;
      if (told.size > 0 && (isOver || !(await pause(delay, signal)))) {
        throw signal.aborted ? HeadwayError.from(signal.reason, signal) : failure;
      }
    }
  } finally {
    left.abort();
    unlink();
  }
}

/** Notes what was told of a message; false if it is older than what was told before, or about none that is left. */
function isNews({ asOf, event }: WatchPositionResponse, told: Map<string, number>): boolean {
  const { subject, id } = event.value as { subject?: { value?: string }; id?: string };
  const key = id ?? subject?.value ?? "";
  const [before, now] = [told.get(key), asOf ? timestampMs(asOf) : Number.POSITIVE_INFINITY];
  const isEnd = event.case === "finished";
  if (before === undefined || (now < before && !isEnd)) {
    return false;
  }
  told.set(key, now);
  return !isEnd || told.delete(key);
}
