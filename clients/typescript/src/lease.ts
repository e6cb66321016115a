/** A message in my hands: settles it, and keeps its lease alive while I work on it. */
import { Code } from "@connectrpc/connect";
import { HeadwayError } from "./errors.js";
import { ErrorReason } from "./gen/headway/v1/error_reason_pb.js";
import { type Delivery, type Message, type Progress, Settled, type SettleResult } from "./gen/headway/v1/message_pb.js";
import type { Queue } from "./queue.js";
import { pause, span } from "./timing.js";
import { contextOf, type TraceContext } from "./trace.js";

/** How a message is given back: `delayMs` unset means by the queue's backoff, `keepAttempt` that it spends no attempt. */
export type DelayOptions = { delayMs?: number; reason?: string; keepAttempt?: boolean };

/** Works on one message; what it returns is the message's result. It is to end soon when `lease.signal` is aborted. */
// biome-ignore lint/suspicious/noConfusingVoidType: a handler that returns nothing is the usual one
export type Handler = (lease: Lease) => Promise<Uint8Array | void>;

/**
 * The right to work on one message until a deadline; Extend at a third of its span keeps it alive until it is settled.
 *
 * At the end of an `await using` scope a message that was not settled goes back to the head, now and for free: a scope
 * cannot see whether it was left by an exception. `Queue.withLease` acks at the end.
 */
export class Lease implements AsyncDisposable {
  /** The message itself. `delivery` tells the rest: its attempt, its ticket, when it was put. */
  readonly message: Message;
  readonly #named: { queue: string; leases: string[] };
  readonly #lost = new AbortController();
  readonly #over = new AbortController();
  /** Aborted with a HeadwayError when the lease is lost (LEASE_STALE, LEASE_GONE), or the client closed (Canceled). */
  readonly signal = this.#lost.signal;

  /** Made by `Queue`. */
  constructor(
    readonly queue: Queue,
    readonly delivery: Delivery,
    readonly spanMs: number,
  ) {
    this.#named = { queue: queue.name, leases: [delivery.lease] };
    this.message = delivery.message as Message; // always sent
    const { held, closing } = queue.client;
    held.add(this);
    const giveUp = () => this.#lost.abort(closing.signal.reason);
    closing.signal.addEventListener("abort", giveUp, { signal: this.#over.signal });
    void this.#keepAlive();
  }

  /** It was acked or given back through this handle, be it in vain, or found lost: nothing extends it any more. */
  get isSettled(): boolean {
    return this.#over.signal.aborted;
  }

  /** OpenTelemetry's context of whoever put the message; its root if it names none. Undefined without OpenTelemetry. */
  traceContext(): Promise<TraceContext | undefined> {
    return contextOf(this.message.headers);
  }

  /** Settles the message for good; `result` (at most 4096 bytes) goes to who watches it. Throws LEASE_STALE, LEASE_GONE. */
  ack(result?: Uint8Array): Promise<SettleResult> {
    const timeoutMs = Math.max(this.spanMs, this.queue.client.callTimeoutMs); // tried while the lease may live
    return this.#settle(this.queue.client.queues.ack({ ...this.#named, result }, { timeoutMs }));
  }

  /** Gives the message back; a reason (at most 1024 bytes) is kept with it. Throws LEASE_STALE, LEASE_GONE. */
  delay({ delayMs, ...how }: DelayOptions = {}): Promise<SettleResult> {
    const value = span(delayMs);
    const available = value && { case: "delay" as const, value };
    return this.#settle(this.queue.client.queues.delay({ ...this.#named, ...how, available }));
  }

  /** Tells watchers how far the work is, 0.0 to 1.0, and a word about it. Throws LEASE_STALE, LEASE_GONE. */
  async progress(fraction: number, note = ""): Promise<void> {
    await this.#extend({ fraction, note });
  }

  /** Gives the message back, unless it is settled: for free, or with a reason to the backoff. Never throws. */
  async giveBack(reason?: string): Promise<void> {
    const how = reason === undefined ? { delayMs: 0, keepAttempt: true } : { reason };
    try {
      await (this.isSettled || this.delay(how));
    } catch (error) {
      console.warn("headway: could not give message %s back: %s", this.message.id, error);
    }
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.giveBack();
  }

  async #extend(progress?: Pick<Progress, "fraction" | "note">, timeoutMs?: number): Promise<void> {
    const request = { ...this.#named, lease: span(this.spanMs), progress };
    const answer = await this.queue.client.queues.extend(request, { timeoutMs });
    await (this.isSettled || this.#book(answer));
  }

  async #keepAlive(): Promise<void> {
    const third = this.spanMs / 3;
    while (await pause(third, this.#over.signal)) {
      const warn = (error: unknown) => console.warn("headway: could not extend a lease: %s", error);
      await this.#extend(undefined, Math.max(third / 2, 100)).catch(warn); // if that fails there is time for another
    }
  }

  async #settle(call: Promise<{ results: SettleResult[] }>): Promise<SettleResult> {
    this.#end();
    return this.#book(await call);
  }

  /** Notes what the service said of this lease; throws if it has no say any more. */
  #book({ results }: { results: SettleResult[] }): SettleResult {
    const result = results[0] as SettleResult; // always sent
    const isStale = result.settled === Settled.STALE;
    if (isStale || result.settled === Settled.GONE) {
      const code = isStale ? Code.FailedPrecondition : Code.NotFound;
      const reason = isStale ? ErrorReason.LEASE_STALE : ErrorReason.LEASE_GONE;
      const error = new HeadwayError("the lease has no say any more", code, reason, { queue: this.queue.name });
      this.#lost.abort(error);
      this.#end();
      throw error;
    }
    return result;
  }

  #end(): void {
    this.#over.abort();
    this.queue.client.held.delete(this);
  }
}

/** Works on a message and settles it; see `Queue.withLease`. */
export async function handle(lease: Lease, handler: Handler, cancel?: AbortSignal): Promise<void> {
  try {
    const result = await handler(lease);
    lease.signal.throwIfAborted();
    await (lease.isSettled || lease.ack(result ?? undefined));
  } catch (error) {
    // The error's kind and not its text, which may hold secrets, is kept with the message.
    const reason = error instanceof Error ? error.name : typeof error;
    await lease.giveBack(cancel?.aborted || lease.signal.aborted ? undefined : reason);
    throw error;
  }
}
