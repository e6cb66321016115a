/** Works through a queue by Get and Ack: leases live on without a connection, and over a restart of the service. */
import { HeadwayError } from "./errors.js";
import { ErrorReason } from "./gen/headway/v1/error_reason_pb.js";
import type { Lease } from "./lease.js";
import { type Handler, handled, newAttempt, type Queue } from "./queue.js";
import { backoffMs, link, pause } from "./timing.js";

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

/** See `Queue.work`. */
export async function work(queue: Queue, handler: Handler, options: WorkOptions): Promise<void> {
  const { concurrency = 1, leaseMs, consumer, stop, signal } = options;
  if (!Number.isInteger(concurrency) || concurrency < 1) {
    throw new RangeError(`concurrency is a whole number of at least 1, not ${concurrency}`);
  }
  const failure = new AbortController();
  const { signal: stopping, unlink } = link(stop, signal, failure.signal, queue.client.closing);

  async function slot(): Promise<void> {
    let [attempt, failures, isLost] = [newAttempt(), 0, false];
    while (!stopping.aborted) {
      try {
        const get = { leaseMs, consumer, waitMs: IDLE_WAIT_MS, signal: stopping };
        const lease = await queue.fetch(get, attempt, signal);
        [attempt, failures, isLost] = [newAttempt(), 0, false];
        await (lease && handle(lease, handler));
      } catch (error) {
        if (stopping.aborted || (error instanceof HeadwayError && error.is(ErrorReason.QUEUE_DRAINED))) {
          break;
        }
        if (!(error instanceof HeadwayError && error.isPassing)) {
          return failure.abort(error); // the other slots stop too
        }
        isLost ||= error.isOutcomeUnknown;
        if (failures === 0) {
          queue.client.log(`queue ${queue.name}: trying again until it works`, error); // once for each outage
        }
        await pause(backoffMs(++failures, error.retryAfterMs), stopping);
      }
    }
    if (isLost) {
      // What a Get leased whose answer never came goes back, now that nobody is going to work on it.
      const lost = await queue.fetch({ leaseMs, consumer }, attempt).catch(() => undefined);
      await lost?.giveBack();
    }
  }

  await Promise.all(Array.from({ length: concurrency }, slot)).finally(unlink);
  failure.signal.throwIfAborted();
}

/** Works on one message and settles it, however long the service is away; its keep-alive tells if that is too late. */
async function handle(lease: Lease, handler: Handler): Promise<void> {
  try {
    const result = (await handled(lease, handler)) ?? undefined;
    for (let failures = 1; !lease.isSettled; failures++) {
      try {
        await lease.ack(result);
      } catch (error) {
        if (!(error instanceof HeadwayError && error.isPassing) || lease.isLost) {
          await lease.giveBack("the ack was refused");
          throw error;
        }
        await pause(backoffMs(failures, error.retryAfterMs), lease.signal);
      }
    }
  } catch (error) {
    lease.queue.client.log(`message ${lease.message.id} is not done`, error);
  }
}
