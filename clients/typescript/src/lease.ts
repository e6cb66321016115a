/** A message in my hands: settles it, and keeps its lease alive while I work on it. */
import { Code } from "@connectrpc/connect";
import type { Context } from "@opentelemetry/api";
import { HeadwayError } from "./errors.js";
import { ErrorReason } from "./gen/headway/v1/error_reason_pb.js";
import { type Delivery, type Message, Settled, type SettleResult } from "./gen/headway/v1/message_pb.js";
import type { Queue } from "./queue.js";
import { anyOf, backoffMs, pause, span } from "./timing.js";
import { contextOf } from "./trace.js";
import { tries } from "./transport.js";

/** How a message is given back. */
export interface DelayOptions {
  /** When it joins the line again, in milliseconds; 0: now, at the head. Unset: by the queue's backoff. */
  delayMs?: number;
  /** Why, for whoever looks at the message later: at most 1024 bytes. */
  reason?: string;
  /** It was not worked on, and spends no attempt. */
  keepAttempt?: boolean;
}

const NONE = new Uint8Array();
const GIVE_BACK_MS = 5_000; // how long giving a message back may take; then its lease just lapses

/**
 * The right to work on one message until a deadline; Extend at a third of its span keeps it alive until it is settled.
 *
 * At the end of an `await using` scope a message that was not settled goes back to the head, now and for free: a scope
 * cannot see whether it was left by an exception. `Queue.withLease` acks at the end.
 */
export class Lease implements AsyncDisposable {
  /** Aborted when the lease is lost, with the HeadwayError that says so, or when the work is to be given up. */
  readonly signal: AbortSignal;
  #settled: Settled | undefined;
  #settlingCount = 0; // while somebody settles it, what Extend says does not count
  readonly #lost = new AbortController();
  readonly #over = new AbortController();

  /** Made by `Queue`. `isOld`: an earlier call got it, whose answer was lost; it may lapse sooner. */
  constructor(
    readonly queue: Queue,
    readonly delivery: Delivery,
    readonly spanMs: number,
    isOld: boolean,
    giveUp?: AbortSignal,
  ) {
    this.signal = anyOf(this.#lost.signal, giveUp);
    queue.client.held.add(this);
    void this.#keepAlive(isOld);
  }

  /** The message itself. `delivery` tells the rest: its attempt, its ticket, when it was put. */
  get message(): Message {
    return this.delivery.message as Message; // always sent
  }

  /** It was acked or given back through this handle, or found lost. */
  get isSettled(): boolean {
    return this.#settled !== undefined;
  }

  /** Somebody else has, or had, the message: what is done with it now has no say. */
  get isLost(): boolean {
    return this.#lost.signal.aborted;
  }

  /** OpenTelemetry's context of whoever put the message; undefined if it names none, or without OpenTelemetry. */
  traceContext(): Promise<Context | undefined> {
    return contextOf(this.message.headers);
  }

  /** Settles the message for good; `result` (at most 4096 bytes) goes to those who watch it. Throws LEASE_STALE, LEASE_GONE. */
  async ack(result: Uint8Array = NONE): Promise<SettleResult> {
    const { stub, request } = this.#named();
    return this.#settle(async () => this.#book((await stub.ack({ ...request, result })).results[0]));
  }

  /** Gives the message back, at the cost of an attempt unless it is kept. Throws LEASE_STALE, LEASE_GONE. */
  async delay({ delayMs, ...rest }: DelayOptions = {}, timeoutMs?: number): Promise<SettleResult> {
    const { stub, request } = this.#named();
    const value = span(delayMs);
    const available = value && { case: "delay" as const, value };
    const counted = tries();
    return this.#settle(async () => {
      const answer = await stub.delay({ ...request, ...rest, available }, { ...counted, timeoutMs });
      return this.#book(answer.results[0], counted.tries.isAgain);
    });
  }

  /** Gives the message back to the head of the line, now and for free. Throws LEASE_STALE, LEASE_GONE. */
  release(): Promise<SettleResult> {
    return this.delay({ delayMs: 0, keepAttempt: true });
  }

  /** Tells watchers how far the work is, 0.0 to 1.0, and a word about it. Throws LEASE_STALE, LEASE_GONE. */
  async progress(fraction: number, note = ""): Promise<SettleResult> {
    return this.#book((await this.#extend({ progress: { fraction, note } })).results[0]);
  }

  /** Gives the message back, if it is not settled: for free, or with a reason to the backoff. Never throws; 5 s at most. */
  async giveBack(reason?: string): Promise<void> {
    const how = reason === undefined ? { delayMs: 0, keepAttempt: true } : { reason };
    try {
      await (this.isSettled || this.delay(how, GIVE_BACK_MS));
    } catch (error) {
      this.queue.client.log(`could not give message ${this.message.id} back`, error);
      this.letGo();
    }
  }

  /** Ends the keep-alive of a lease that nobody can settle: it lapses by itself. */
  letGo(): void {
    this.#end(Settled.UNSPECIFIED);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.giveBack();
  }

  #named() {
    return { stub: this.queue.client.queues, request: { queue: this.queue.name, leases: [this.delivery.lease] } };
  }

  #extend(more: { progress?: { fraction: number; note: string } }, timeoutMs?: number) {
    const { stub, request } = this.#named();
    return stub.extend({ ...request, ...more, lease: span(this.spanMs) }, { timeoutMs });
  }

  async #keepAlive(isOld: boolean): Promise<void> {
    const third = this.spanMs / 3;
    let delay = isOld ? 0 : third;
    for (let failures = 0; await pause(delay, this.#over.signal); ) {
      try {
        const answer = this.#settlingCount ? undefined : await this.#extend({}, Math.max(third, 100));
        failures = 0;
        if (answer && !this.#settlingCount && !this.isSettled) {
          this.#book(answer.results[0]);
        }
      } catch (error) {
        failures++;
        this.queue.client.log(`could not extend the lease of message ${this.message.id}`, error);
      }
      delay = failures ? Math.min(third, backoffMs(failures)) : third;
    }
  }

  async #settle(call: () => Promise<SettleResult>): Promise<SettleResult> {
    this.#settlingCount++;
    try {
      return await call();
    } finally {
      this.#settlingCount--;
    }
  }

  /** Notes what the service said. A call made again that has no say any more most likely did it at first. */
  #book(result: SettleResult | undefined, isAgain = false): SettleResult {
    if (result === undefined) {
      throw new HeadwayError("the service did not tell what became of the lease", Code.Internal);
    }
    if (result.settled === Settled.EXTENDED) {
      return result;
    }
    const [isStale, isGone] = [result.settled === Settled.STALE, result.settled === Settled.GONE];
    if (!(isStale || isGone) || isAgain) {
      this.#end(result.settled);
      return result;
    }
    const metadata = { queue: this.queue.name };
    const text = `the lease of message ${this.message.id}`;
    const error = isStale
      ? new HeadwayError(`${text} is stale`, Code.FailedPrecondition, { reason: ErrorReason.LEASE_STALE, metadata })
      : new HeadwayError(`${text} is gone`, Code.NotFound, { reason: ErrorReason.LEASE_GONE, metadata });
    this.#lost.abort(error);
    this.#end(result.settled);
    throw error;
  }

  #end(settled: Settled): void {
    this.#settled = settled;
    this.#over.abort();
    this.queue.client.held.delete(this);
  }
}
