/** Works through a queue by Get and Ack: leases live on without a connection, and over a restart of the service. */
import { HeadwayError } from "./errors.js";
import { ErrorReason } from "./gen/headway/v1/error_reason_pb.js";
import type { Lease } from "./lease.js";
import { type Attempt, type Handler, handled, newAttempt, type Queue } from "./queue.js";
import { anyOf, backoffMs, pause } from "./timing.js";

/** How a queue is worked through. */
export interface WorkOptions {
  /** How many messages are worked on at once. Unset: 1. */
  concurrency?: number;
  /** How long a lease lasts when nothing extends it, in milliseconds. Unset: the queue's policy. */
  leaseMs?: number;
  /** Who consumes, for people who look. */
  consumer?: string;
  /** Aborted, nothing more is leased; the work ends when what is held is finished. */
  stop?: AbortSignal;
  /** Aborted, the handlers' `lease.signal` is aborted as well, and what they give up goes back for free. */
  signal?: AbortSignal;
}

const IDLE_WAIT_MS = 30_000; // one waiting Get; longer saves calls, shorter notices a lost service sooner
const FINAL_ACK_TRIES = 5; // after a stop: how often a finished message's ack is tried before its lease may lapse

/** See `Queue.work`. */
export async function work(queue: Queue, handler: Handler, options: WorkOptions): Promise<void> {
  const { concurrency = 1, leaseMs, consumer, stop, signal } = options;
  if (!(Number.isInteger(concurrency) && concurrency > 0)) {
    throw new RangeError("concurrency is a whole number, at least 1");
  }
  const failure = new AbortController();
  const stopping = queue.client.until(anyOf(stop, signal, failure.signal));
  const get = { leaseMs, consumer };
  const slots = Array.from({ length: concurrency }, async () => {
    let attempt = newAttempt();
    for (let failures = 0; !stopping.aborted; ) {
      try {
        const lease = await queue.fetch({ ...get, waitMs: IDLE_WAIT_MS, signal: stopping }, attempt, signal);
        [attempt, failures] = [newAttempt(), 0];
        if (lease) {
          await handle(lease, handler, stopping);
        }
      } catch (error) {
        if (stopping.aborted || (error instanceof HeadwayError && error.is(ErrorReason.QUEUE_DRAINED))) {
          break;
        }
        if (!(error instanceof HeadwayError && error.isPassing)) {
          failure.abort(error); // the other slots stop too
          break;
        }
        queue.client.log(`queue ${queue.name}: trying again until it works`, error);
        await pause(backoffMs(++failures, error.retryAfterMs), stopping);
      }
    }
    await returnLost(queue, get, attempt);
  });
  await Promise.all(slots);
  failure.signal.throwIfAborted();
}

/** Works on one message and settles it. Throws HeadwayError if its result was refused, after giving it back. */
async function handle(lease: Lease, handler: Handler, stopping: AbortSignal): Promise<void> {
  if (stopping.aborted) {
    return lease.giveBack();
  }
  const { client } = lease.queue;
  let result: Uint8Array | undefined;
  try {
    result = (await handled(lease, handler)) ?? undefined;
  } catch (error) {
    client.log(`the handler failed on message ${lease.message.id}`, error);
    return;
  }
  for (let failures = 1; !lease.isSettled; failures++) {
    try {
      await lease.ack(result);
    } catch (error) {
      client.log(`message ${lease.message.id} was handled, but not acked`, error);
      if (!(error instanceof HeadwayError && error.isPassing)) {
        await lease.giveBack("the ack was refused");
      } else if (stopping.aborted && failures >= FINAL_ACK_TRIES) {
        return lease.letGo();
      } else {
        await pause(backoffMs(failures, error.retryAfterMs));
      }
    }
  }
}

/** Gives back for free what a Get leased whose answer never came, now that nobody is going to work on it. */
async function returnLost(queue: Queue, get: { leaseMs?: number }, attempt: Attempt): Promise<void> {
  if (attempt.isAgain && !queue.client.isClosed) {
    try {
      await (await queue.fetch(get, attempt))?.giveBack();
    } catch (error) {
      queue.client.log(`queue ${queue.name}: a message may be left leased until its lease lapses`, error);
    }
  }
}
