/** A queue by its name: puts, leases, works and watches. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import { createDeadlineSignal, createLinkedAbortController } from "@connectrpc/connect/protocol";
import type { Client } from "./client.js";
import { HeadwayError } from "./errors.js";
import { type Handler, Lease } from "./lease.js";
import { backoffMs, pause, span, warn } from "./timing.js";
import { currentHeaders, traced } from "./trace.js";
import { OF_CALLERS, repeated } from "./transport.js";
import { ErrorReason, type MessageSchema, type PutResult, type WatchPositionResponse } from "./v1.js";

/**
 * How many milliseconds to wait for room, or for a message (unset: not at all), and what cancels the call. If it is
 * aborted while the handler of `withLease` works, and the handler throws then, the message goes back for free.
 */
export type CallOptions = { waitMs?: number; signal?: AbortSignal };

/**
 * How long a lease lasts when nothing extends it, in milliseconds (unset: the queue's policy), and the name of the Get
 * (unset: a new one): under the same name a lease that still lives comes once more. `isOld` says that the name was used
 * before, so that what comes may lapse soon, and is extended at once.
 */
export type LeaseOptions = CallOptions & { leaseMs?: number; attemptId?: string; isOld?: boolean };

/** How many messages are worked on at once (unset: 1), and what stops that: what is held is finished first. */
export type WorkOptions = { leaseMs?: number; concurrency?: number; stop?: AbortSignal };

/** How messages are watched: whoever leaves while `attended` withdraws those that still wait or are delayed. */
export type WatchOptions = { attended?: boolean; signal?: AbortSignal };

/** A name that no other Get has, also on pages that came without TLS. */
const unique = () => crypto.getRandomValues(new Uint32Array(4)).join("-");

/** One queue; made by `Client.queue`, at no cost. */
export class Queue {
  constructor(
    readonly client: Client,
    readonly name: string,
  ) {}

  /** Puts a batch, in order; one result each, with `error` set if it was refused. Throws if all were for one reason. */
  async put(messages: MessageInitShape<typeof MessageSchema>[], how: CallOptions = {}): Promise<PutResult[]> {
    const context = await currentHeaders();
    const made = messages.map((message) => traced(message, context));
    return (await this.client.queues.put({ queue: this.name, messages: made, wait: span(how.waitMs) }, how)).results;
  }

  /** Leases one message; undefined if none came in time. The caller settles it: `ack`, `delay` or `giveBack`. */
  async lease({ waitMs, leaseMs, signal, attemptId = unique(), isOld }: LeaseOptions = {}): Promise<Lease | undefined> {
    const request = { queue: this.name, attemptId, wait: span(waitMs), lease: span(leaseMs) };
    const call = createLinkedAbortController(this.client.closing.signal, signal); // of `any` Node 20 keeps something
    const asked = this.client.queues.get(request, { signal: call.signal }).finally(() => call.abort());
    const { deliveries } = await asked.catch(async (error) => {
      // It may have been answered in that moment: what it leased is asked for by its name, and goes back.
      await (signal?.aborted && this.withLease((it) => it.giveBack(), { attemptId }).catch(() => undefined));
      throw error;
    });
    const lease = deliveries[0] && new Lease(this, deliveries[0], isOld === true || repeated.has(request), leaseMs);
    await (this.client.closing.signal.aborted && lease?.giveBack()); // it came all the same
    this.client.closing.signal.throwIfAborted();
    return lease;
  }

  /**
   * Leases one message and works on it; false if none came in time.
   *
   * Acks it when the handler returns, with the bytes it returns as the result; gives it to the queue's backoff if the
   * handler throws, and back to the head for free if `signal` was aborted before. Throws what the handler threw, and
   * LEASE_STALE or LEASE_GONE if the ack came too late.
   */
  async withLease(handler: Handler, options: LeaseOptions = {}): Promise<boolean> {
    const lease = await this.lease(options);
    await lease?.handle(handler, options.signal);
    return lease !== undefined;
  }

  /**
   * Works through the queue until it is drained or `stop` is aborted. Throws what would not pass by itself.
   *
   * It uses Get and Ack: its leases live on without a connection, and over a restart of the service.
   */
  async work(handler: Handler, { concurrency = 1, leaseMs, stop }: WorkOptions = {}): Promise<void> {
    if (!(concurrency >= 1)) {
      throw new RangeError(`concurrency is at least 1, not ${concurrency}`);
    }
    const ending = new AbortController();
    const signal = AbortSignal.any([ending.signal, this.client.closing.signal, ...(stop ? [stop] : [])]);
    const slot = async () => {
      // Stopped behind one that was not answered, it asks once more, and gives back what that leased.
      for (let [failures, attemptId] = [0, unique()]; !signal.aborted || failures > 0; ) {
        try {
          // A longer wait saves calls, a shorter one notices a lost service sooner. A Get that was not answered may have
          // leased something, so the next one has its name.
          const lease = await this.lease({ waitMs: 30_000, leaseMs, signal, attemptId, isOld: failures > 0 });
          [failures, attemptId] = [0, unique()];
          await lease?.handle(handler).catch(warn);
        } catch (caught) {
          const error = HeadwayError.from(caught, signal);
          if (signal.aborted || !error.isPassing) {
            // Stopped, it has given back what it leased. If that is a failure, the other slots stop too.
            return signal.aborted || error.is(ErrorReason.QUEUE_DRAINED) ? undefined : ending.abort(error);
          }
          warn(error);
          await pause(backoffMs(++failures, error.retryAfterMs), signal);
        }
      }
    };
    await Promise.all(Array.from({ length: concurrency }, slot));
    ending.signal.throwIfAborted();
  }

  /**
   * Yields what is told of messages until each has ended, and asks anew wherever a stream breaks, or brings no answer
   * within the call timeout: then where those that are left stand is told once more. A stream that was served until its
   * token expired is opened once more, with the token of now. Throws QUEUE_NOT_FOUND.
   */
  async *watch(ids: readonly string[], { attended, signal }: WatchOptions = {}): AsyncGenerator<WatchPositionResponse> {
    const [queues, left] = [this.client.queues, new Set(ids)];
    for (let [failures, delayMs] = [1, 0]; left.size > 0; delayMs = backoffMs(++failures, delayMs)) {
      const patience = createDeadlineSignal(delayMs + this.client.callTimeoutMs); // the first answer comes at once
      const ending = createLinkedAbortController(this.client.closing.signal, signal, patience.signal);
      try {
        await (delayMs > 0 && pause(delayMs, ending.signal));
        const subject = { case: "messages" as const, value: { ids: [...left], attended } };
        for await (const answer of queues.watchPosition({ queue: this.name, subject }, { signal: ending.signal })) {
          patience.cleanup();
          [failures, delayMs] = [0, 0];
          yield answer;
          void (answer.event.case === "finished" && left.delete(answer.event.value.id));
        }
      } catch (caught) {
        const error = HeadwayError.from(caught, ending.signal);
        if (!error.isPassing && (failures > 0 || !OF_CALLERS.includes(error.code))) {
          throw error;
        }
        delayMs = error.retryAfterMs ?? 0;
      } finally {
        patience.cleanup();
        ending.abort(); // Connect does not end a stream whose loop is left
      }
    }
  }
}
