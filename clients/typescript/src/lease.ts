/** A message in my hands: settles it, and keeps its lease alive while I work on it. */
import { Code } from "@connectrpc/connect";
import { HeadwayError } from "./errors.js";
import { ErrorReason } from "./gen/headway/v1/error_reason_pb.js";
import { type Delivery, type Message, Settled, type SettleResult } from "./gen/headway/v1/message_pb.js";
import type { Queue } from "./queue.js";
import { backoffMs, link, pause, span } from "./timing.js";
import { contextOf, type TraceContext } from "./trace.js";

/** How a message is given back. */
export interface DelayOptions {
  /** When it joins the line again, in milliseconds; 0: now, at the head. Unset: by the queue's backoff. */
  delayMs?: number;
  /** Why, for whoever looks at the message later: at most 1024 bytes. */
  reason?: string;
  /** It was not worked on, and spends no attempt. */
  keepAttempt?: boolean;
}

const FREE: DelayOptions = { delayMs: 0, keepAttempt: true };
const GIVE_BACK_MS = 5_000; // how long giving a message back may take; then its lease just lapses

/**
 * The right to work on one message until a deadline; Extend at a third of its span keeps it alive until it is settled.
 *
 * At the end of an `await using` scope a message that was not settled goes back to the head, now and for free: a scope
 * cannot see whether it was left by an exception. `Queue.withLease` acks at the end.
 */
export class Lease implements AsyncDisposable {
  #settlingCount = 0; // while somebody settles it, what Extend says does not count
  readonly #lost = new AbortController();
  readonly #over = new AbortController();
  readonly #link: ReturnType<typeof link>;

  /** Made by `Queue`, and extended after `firstMs` for the first time. */
  constructor(
    readonly queue: Queue,
    readonly delivery: Delivery,
    readonly spanMs: number,
    firstMs: number,
    giveUp?: AbortSignal,
  ) {
    this.#link = link(this.#lost.signal, giveUp, queue.client.closing);
    queue.client.held.add(this);
    void this.#keepAlive(firstMs);
  }

  /** The message itself. `delivery` tells the rest: its attempt, its ticket, when it was put. */
  get message(): Message {
    return this.delivery.message as Message; // always sent
  }

  /** It was acked or given back through this handle, or found lost. */
  get isSettled(): boolean {
    return this.#over.signal.aborted;
  }

  /** Aborted when the lease is lost, with the HeadwayError that says so, or when the work is to be given up. */
  get signal(): AbortSignal {
    return this.#link.signal;
  }

  /** Somebody else has, or had, the message: what is done with it now has no say. */
  get isLost(): boolean {
    return this.#lost.signal.aborted;
  }

  /** OpenTelemetry's context of whoever put the message; undefined if it names none, or without OpenTelemetry. */
  traceContext(): Promise<TraceContext | undefined> {
    return contextOf(this.message.headers);
  }

  /** Settles the message for good; `result` (at most 4096 bytes) goes to who watches it. Throws LEASE_STALE, LEASE_GONE. */
  ack(result?: Uint8Array): Promise<SettleResult> {
    return this.#settle(this.queue.client.queues.ack({ ...this.#named(), result }));
  }

  /** Gives the message back, at the cost of an attempt unless it is kept. Throws LEASE_STALE, LEASE_GONE. */
  delay({ delayMs, ...rest }: DelayOptions = {}, timeoutMs?: number): Promise<SettleResult> {
    const value = span(delayMs);
    const available = value && { case: "delay" as const, value };
    return this.#settle(this.queue.client.queues.delay({ ...this.#named(), ...rest, available }, { timeoutMs }));
  }

  /** Gives the message back to the head of the line, now and for free. Throws LEASE_STALE, LEASE_GONE. */
  release(): Promise<SettleResult> {
    return this.delay(FREE);
  }

  /** Tells watchers how far the work is, 0.0 to 1.0, and a word about it. Throws LEASE_STALE, LEASE_GONE. */
  async progress(fraction: number, note = ""): Promise<SettleResult> {
    return this.#book(await this.#extend(undefined, { fraction, note }));
  }

  /** Gives the message back, unless it is settled just now or was: for free, or with a reason to the backoff. Never throws; 5 s at most. */
  async giveBack(reason?: string): Promise<void> {
    const how = reason === undefined ? FREE : { reason };
    try {
      await (this.isSettled || this.#settlingCount > 0 || this.delay(how, GIVE_BACK_MS));
    } catch (error) {
      this.queue.client.log(`could not give message ${this.message.id} back`, error);
      this.#end();
    }
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.giveBack();
  }

  #named() {
    return { queue: this.queue.name, leases: [this.delivery.lease] };
  }

  #extend(timeoutMs?: number, progress?: { fraction: number; note: string }) {
    return this.queue.client.queues.extend({ ...this.#named(), lease: span(this.spanMs), progress }, { timeoutMs });
  }

  async #keepAlive(firstMs: number): Promise<void> {
    const third = this.spanMs / 3;
    let failures = 0;
    for (let delay = firstMs; await pause(delay, this.#over.signal); ) {
      try {
        const answer = this.#settlingCount ? undefined : await this.#extend(Math.max(third, 100));
        failures = 0;
        if (answer && !this.#settlingCount && !this.isSettled) {
          this.#book(answer);
        }
      } catch (error) {
        failures++;
        this.queue.client.log(`could not extend the lease of message ${this.message.id}`, error);
      }
      delay = failures ? Math.min(third, backoffMs(failures)) : third;
    }
  }

  async #settle(call: Promise<{ results: SettleResult[] }>): Promise<SettleResult> {
    this.#settlingCount++;
    try {
      return this.#book(await call);
    } finally {
      this.#settlingCount--;
    }
  }

  /** Notes what the service said of this lease; throws if it has no say any more. */
  #book({ results }: { results: SettleResult[] }): SettleResult {
    const result = results[0] as SettleResult; // always sent
    if (result.settled === Settled.STALE || result.settled === Settled.GONE) {
      const isStale = result.settled === Settled.STALE;
      const code = isStale ? Code.FailedPrecondition : Code.NotFound;
      const reason = isStale ? ErrorReason.LEASE_STALE : ErrorReason.LEASE_GONE;
      const text = `the lease of message ${this.message.id} has no say any more`;
      this.#lost.abort(new HeadwayError(text, code, reason, { queue: this.queue.name }));
    }
    if (result.settled !== Settled.EXTENDED) {
      this.#end();
    }
    this.#lost.signal.throwIfAborted();
    return result;
  }

  #end(): void {
    this.#over.abort();
    this.#link.unlink();
    this.queue.client.held.delete(this);
  }
}
