/** A queue by its name: puts, leases, works and watches. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import { durationMs } from "@bufbuild/protobuf/wkt";
import type { Client } from "./client.js";
import { HeadwayError } from "./errors.js";
import type { MessageSchema, OnDuplicate, PutResult } from "./gen/headway/v1/message_pb.js";
import type { WatchPositionResponse } from "./gen/headway/v1/queue_service_pb.js";
import { Lease } from "./lease.js";
import { span } from "./timing.js";
import { currentHeaders } from "./trace.js";
import { type WatchOptions, watch } from "./watch.js";
import { type WorkOptions, work } from "./work.js";

/** How messages are put. */
export interface PutOptions {
  /** How long to wait for room, in milliseconds. Unset: not at all. */
  waitMs?: number;
  /** What to do with ids that are known already. Unset: refuse them. */
  onDuplicate?: OnDuplicate;
  /** Who puts, for people who look and for who watches it while it is blocked. */
  producer?: string;
  signal?: AbortSignal;
}

/** How a message is leased. */
export interface LeaseOptions {
  /** How long to wait for a message, in milliseconds. Unset: not at all. */
  waitMs?: number;
  /** How long the lease lasts when nothing extends it, in milliseconds. Unset: the queue's policy. */
  leaseMs?: number;
  /** Who consumes, for people who look. */
  consumer?: string;
  /** Cancels the call, and later the lease: see `Lease.signal`. */
  signal?: AbortSignal;
}

/** Works on one message; what it returns is the message's result. It is to end soon when `lease.signal` is aborted. */
// biome-ignore lint/suspicious/noConfusingVoidType: a handler that returns nothing is the usual one
export type Handler = (lease: Lease) => Promise<Uint8Array | void>;

/** One queue; made by `Client.queue`, at no cost. */
export class Queue {
  #spanMs: number | undefined; // of the policy

  constructor(
    readonly client: Client,
    readonly name: string,
  ) {}

  /** Puts one message; its ticket and its position at that moment. Throws what refused it, such as QUEUE_FULL. */
  async put(message: MessageInitShape<typeof MessageSchema>, options?: PutOptions): Promise<PutResult> {
    const [result] = (await this.putAll([message], options)) as [PutResult];
    if (result.error) {
      throw HeadwayError.fromStatus(result.error);
    }
    return result;
  }

  /** Puts a batch, in order; one result for each, with `error` set if it was refused. Throws if all were, for one reason. */
  async putAll(
    messages: readonly MessageInitShape<typeof MessageSchema>[],
    { waitMs, signal, ...rest }: PutOptions = {},
  ): Promise<PutResult[]> {
    const traced = await currentHeaders();
    const made = messages.map((each) => {
      const isTraced = "traceparent" in (each.headers ?? {});
      return isTraced ? each : { ...each, headers: { ...each.headers, ...traced } };
    });
    const request = { ...rest, queue: this.name, messages: made, wait: span(waitMs) };
    return (await this.client.queues.put(request, { signal })).results;
  }

  /** Leases one message; undefined if none came in time. The caller settles it: `ack`, `delay`, or `await using`. */
  lease(options: LeaseOptions = {}): Promise<Lease | undefined> {
    return this.fetch(options, newAttempt(), options.signal);
  }

  /**
   * Leases one message and works on it; false if none came in time.
   *
   * Acks it when the handler returns, with the bytes it returns as the result; gives it to the queue's backoff if the
   * handler throws, and back to the head for free if that is because `signal` was aborted. Throws what the handler
   * threw, and LEASE_STALE or LEASE_GONE if the ack came too late.
   */
  async withLease(handler: Handler, options: LeaseOptions = {}): Promise<boolean> {
    const lease = await this.lease(options);
    const result = lease && (await handled(lease, handler));
    if (lease?.isLost) {
      throw lease.signal.reason;
    }
    await (!lease || lease.isSettled || lease.ack(result ?? undefined));
    return lease !== undefined;
  }

  /** Works through the queue until it is drained or `stop` is aborted. Throws what would not pass by itself. */
  work(handler: Handler, options: WorkOptions = {}): Promise<void> {
    return work(this, handler, options);
  }

  /** Yields where messages are until each has ended, over broken connections. Throws QUEUE_NOT_FOUND. */
  watch(ids: readonly string[], options: WatchOptions = {}): AsyncGenerator<WatchPositionResponse, void> {
    return watch(this, ids, options);
  }

  /** One Get, which the same attempt again repeats; `giveUp` goes to the lease. The layer's own. */
  async fetch(options: LeaseOptions, attempt: Attempt, giveUp?: AbortSignal): Promise<Lease | undefined> {
    const { waitMs, leaseMs, consumer, signal } = options;
    const spanMs = leaseMs ?? (await this.#policySpanMs(signal));
    const spans = { wait: span(waitMs), lease: span(spanMs) };
    const request = { ...spans, queue: this.name, consumer, attemptId: attempt.id };
    const [delivery] = (await this.client.queues.get(request, { signal })).deliveries;
    // It was given at some time since the attempt began: for all we know at once.
    const firstMs = Math.max(0, spanMs / 3 - (Date.now() - attempt.begunAt));
    return delivery && new Lease(this, delivery, spanMs, firstMs, giveUp);
  }

  async #policySpanMs(signal?: AbortSignal): Promise<number> {
    if (this.#spanMs === undefined) {
      const { queue } = await this.client.queues.describe({ queue: this.name }, { signal });
      this.#spanMs = queue?.policy?.lease ? durationMs(queue.policy.lease) : 30_000;
    }
    return this.#spanMs;
  }
}

/** The name of a Get until it is answered: what a lost answer leased is asked for, not left behind. */
export type Attempt = Readonly<{ id: string; begunAt: number }>;

/** A name that no other Get has. */
export function newAttempt(): Attempt {
  return { id: crypto.randomUUID(), begunAt: Date.now() };
}

/** Runs the handler; if it throws the message is given back first: for free if the work was to be given up. */
export async function handled(lease: Lease, handler: Handler): ReturnType<Handler> {
  try {
    return await handler(lease);
  } catch (error) {
    // The error's kind and not its text, which may hold secrets, is kept with the message.
    await lease.giveBack(lease.signal.aborted ? undefined : error instanceof Error ? error.name : typeof error);
    throw error;
  }
}
