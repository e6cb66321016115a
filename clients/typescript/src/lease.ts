/** A message in my hands: settles it, and keeps its lease alive while I work on it. */
import { durationMs, timestampMs } from "@bufbuild/protobuf/wkt";
import { Code } from "@connectrpc/connect";
import { HeadwayError } from "./errors.js";
import type { Queue } from "./queue.js";
import { pause, span, warn } from "./timing.js";
import { contextOf, type TraceContext } from "./trace.js";
import { type Delivery, ErrorReason, type Message, type Progress, Settled, type SettleResult } from "./v1.js";

const GONE: [Code, ErrorReason] = [Code.NotFound, ErrorReason.LEASE_GONE];
const STALE: [Code, ErrorReason] = [Code.FailedPrecondition, ErrorReason.LEASE_STALE];

/** How a message is given back: `delayMs` unset: by the queue's backoff; `keepAttempt`: it spends no attempt. */
export type DelayOptions = { delayMs?: number; reason?: string; keepAttempt?: boolean };

/** Works on one message; what it returns is the message's result. It is to end soon when `lease.signal` is aborted. */
// biome-ignore lint/suspicious/noConfusingVoidType: a handler that returns nothing is the usual one
export type Handler = (lease: Lease) => Promise<Uint8Array | void>;

/**
 * The right to work on one message until a deadline; Extend at a third of its span keeps it alive until it is settled.
 * `Queue.withLease` settles it in the end; who asked for it by `Queue.lease` does so itself.
 */
export class Lease {
  /** The message itself. `delivery` tells the rest: its attempt, its ticket, when it was put. */
  readonly message: Message;
  readonly #named: { queue: string; leases: string[] };
  readonly #lost = new AbortController();
  readonly #over = new AbortController(); // settled, given up or found lost: nothing extends it any more
  #settling: Promise<SettleResult | undefined> = Promise.resolve(undefined); // how, once it is
  /** Aborted when the lease is lost (with the HeadwayError: LEASE_STALE, LEASE_GONE), or the client is closed. */
  readonly signal = this.#lost.signal;

  /**
   * Made by `Queue`. It was asked to last for `leaseMs` (unset: as the queue's policy says), and lasts for `spanMs`;
   * `isOld`: it may have been given before the call that was answered, so nobody knows how much of that is left.
   */
  constructor(
    readonly queue: Queue,
    readonly delivery: Delivery,
    isOld: boolean,
    readonly leaseMs?: number,
    readonly spanMs = leaseMs ?? policyMs(delivery),
  ) {
    this.#named = { queue: queue.name, leases: [delivery.lease] };
    this.message = delivery.message as Message; // always sent
    queue.client.held.add(this);
    this.#over.signal.addEventListener("abort", () => queue.client.held.delete(this));
    queue.client.closing.signal.addEventListener("abort", () => this.#lost.abort(), { signal: this.#over.signal });
    void this.#keepAlive(isOld);
  }

  /** OpenTelemetry's context of whoever put the message; its root if it names none. Undefined without OpenTelemetry. */
  readonly traceContext = (): Promise<TraceContext | undefined> => contextOf(this.message.headers);

  /**
   * Settles the message for good, with a result (at most 4096 bytes) for watchers. Throws LEASE_STALE, also if the
   * message lies with the dead, and LEASE_GONE. If it fails otherwise the lease goes on, and it may be tried again. What
   * is settled is not settled again, here and by `delay`: they answer how it was.
   */
  ack(result?: Uint8Array): Promise<SettleResult> {
    const timeoutMs = Math.max(this.spanMs, this.queue.client.callTimeoutMs); // tried while the lease may live
    return this.#settle(() => this.queue.client.queues.ack({ ...this.#named, result }, { timeoutMs }), Settled.DEAD);
  }

  /** Gives the message back; a reason (at most 1024 bytes) is kept with it. Throws LEASE_STALE, LEASE_GONE. */
  delay({ delayMs, ...how }: DelayOptions = {}): Promise<SettleResult> {
    const value = span(delayMs);
    const request = { ...this.#named, ...how, available: value && { case: "delay" as const, value } };
    return this.#settle(() => this.queue.client.queues.delay(request));
  }

  /** Tells watchers how far the work is, 0.0 to 1.0, and a word about it. Throws LEASE_STALE, LEASE_GONE. */
  readonly progress = (fraction: number, note = ""): Promise<void> => this.#extend({ fraction, note });

  /** Gives the message back, unless it is settled: for free, or with a reason to the backoff. Never throws. */
  async giveBack(reason?: string): Promise<void> {
    const how = reason === undefined ? { delayMs: 0, keepAttempt: true } : { reason };
    await (this.#over.signal.aborted || this.delay(how).catch(warn));
    this.#over.abort(); // what could not be given back lapses
  }

  async #extend(progress?: Pick<Progress, "fraction" | "note">, timeoutMs?: number): Promise<void> {
    const request = { ...this.#named, lease: span(this.leaseMs), progress };
    const answer = this.#over.signal.aborted || (await this.queue.client.queues.extend(request, { timeoutMs }));
    // One that is overtaken by an Ack finds the lease gone.
    void ((await this.#settling) ?? (answer === true || this.#over.signal.aborted || this.#book(answer)));
  }

  async #keepAlive(isOld: boolean): Promise<void> {
    for (let third = this.spanMs / 3, left = isOld ? 0 : third; await pause(left, this.#over.signal); left = third) {
      // If it fails there is time for another. It may wait for an Ack to end, during which others go.
      void this.#extend(undefined, Math.min(Math.max(third / 2, 100), this.queue.client.callTimeoutMs)).catch(warn);
    }
  }

  /** Settles it, unless it is settled: one call after the other, but beside Extends, whose answers may not come. */
  #settle(call: () => Promise<{ results: SettleResult[] }>, tooLate?: Settled): Promise<SettleResult> {
    const made = this.#settling.then(async (settled) => settled ?? this.#book(await call(), tooLate));
    this.#settling = made.catch(() => undefined);
    return made;
  }

  /** Notes what the service said of this lease; throws if it has no say any more. `tooLate` is what else says so. */
  #book({ results }: { results: SettleResult[] }, tooLate = Settled.STALE): SettleResult {
    const result = results[0] as SettleResult; // always sent
    void (result.settled === Settled.EXTENDED || this.#over.abort());
    if ([Settled.STALE, Settled.GONE, tooLate].includes(result.settled)) {
      const told = result.settled === Settled.GONE ? GONE : STALE;
      const error = new HeadwayError("too late: the lease has no say", ...told, { queue: this.queue.name });
      this.#lost.abort(error);
      throw error;
    }
    return result;
  }

  /** Works on the message and settles it, for `Queue`; `cancel` says whether what is thrown is to cost nothing. */
  async handle(handler: Handler, cancel?: AbortSignal): Promise<void> {
    try {
      const result = await handler(this);
      this.signal.throwIfAborted();
      await (this.#over.signal.aborted || this.ack(result ?? undefined));
    } catch (error) {
      // The error's kind and not its text, which may hold secrets, is kept with the message.
      const reason = error instanceof Error ? error.name : typeof error;
      await this.giveBack(cancel?.aborted || this.signal.aborted ? undefined : reason);
      throw error;
    }
  }
}

/** How long the policy's lease lasts, by the store's clock; the shortest there is where nobody knows. */
function policyMs({ leaseExpiresAt: until, putAt, waited }: Delivery): number {
  // Less than the shortest, or none, where the store's clock went back.
  return Math.max(100, until && putAt && waited ? timestampMs(until) - timestampMs(putAt) - durationMs(waited) : 0);
}
