/** A message in my hands: settles it, and keeps its lease alive while I work on it. */
import { durationMs, timestampMs } from "@bufbuild/protobuf/wkt";
import { Code } from "@connectrpc/connect";
import { HeadwayError } from "./errors.js";
import { ErrorReason } from "./gen/headway/v1/error_reason_pb.js";
import { type Delivery, type Message, type Progress, Settled, type SettleResult } from "./gen/headway/v1/message_pb.js";
import type { Queue } from "./queue.js";
import { pause, span, warn } from "./timing.js";
import { contextOf, type TraceContext } from "./trace.js";

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
  #turn: Promise<unknown> = Promise.resolve(); // that of the last call
  /** Aborted when the lease is lost (with the HeadwayError: LEASE_STALE, LEASE_GONE), or the client is closed. */
  readonly signal = this.#lost.signal;

  /** Made by `Queue`. It was asked to last for `leaseMs` (unset: as the queue's policy says), and lasts for `spanMs`. */
  constructor(
    readonly queue: Queue,
    readonly delivery: Delivery,
    readonly leaseMs?: number,
    readonly spanMs = leaseMs ?? policyMs(delivery),
  ) {
    this.#named = { queue: queue.name, leases: [delivery.lease] };
    this.message = delivery.message as Message; // always sent
    queue.client.held.add(this);
    this.#over.signal.addEventListener("abort", () => queue.client.held.delete(this));
    queue.client.closing.signal.addEventListener("abort", () => this.#lost.abort(), { signal: this.#over.signal });
    void this.#keepAlive();
  }

  /** OpenTelemetry's context of whoever put the message; its root if it names none. Undefined without OpenTelemetry. */
  readonly traceContext = (): Promise<TraceContext | undefined> => contextOf(this.message.headers);

  /**
   * Settles the message for good, with a result (at most 4096 bytes) for watchers. Throws LEASE_STALE, also if the
   * message lies with the dead, and LEASE_GONE. If it fails otherwise the lease goes on, and it may be tried again.
   */
  ack(result?: Uint8Array): Promise<SettleResult> {
    const timeoutMs = Math.max(this.spanMs, this.queue.client.callTimeoutMs); // tried while the lease may live
    const ack = () => this.queue.client.queues.ack({ ...this.#named, result }, { timeoutMs });
    return this.#inTurn(async () => this.#book(await ack(), Settled.DEAD));
  }

  /** Gives the message back; a reason (at most 1024 bytes) is kept with it. Throws LEASE_STALE, LEASE_GONE. */
  readonly delay = (how: DelayOptions = {}): Promise<SettleResult> => this.#inTurn(() => this.#delay(how));

  /** Tells watchers how far the work is, 0.0 to 1.0, and a word about it. Throws LEASE_STALE, LEASE_GONE. */
  readonly progress = (fraction: number, note = ""): Promise<void> => this.#extend({ fraction, note });

  /** Gives the message back, unless it is settled: for free, or with a reason to the backoff. Never throws. */
  async giveBack(reason?: string): Promise<void> {
    const how = reason === undefined ? { delayMs: 0, keepAttempt: true } : { reason };
    await this.#inTurn(async () => this.#over.signal.aborted || this.#delay(how)).catch(warn);
    this.#over.abort(); // what could not be given back lapses
  }

  async #delay({ delayMs, ...how }: DelayOptions): Promise<SettleResult> {
    const value = span(delayMs);
    const available = value && { case: "delay" as const, value };
    return this.#book(await this.queue.client.queues.delay({ ...this.#named, ...how, available }));
  }

  async #extend(progress?: Pick<Progress, "fraction" | "note">, timeoutMs?: number): Promise<void> {
    const request = { ...this.#named, lease: span(this.leaseMs), progress };
    const extend = () => this.queue.client.queues.extend(request, { timeoutMs });
    await this.#inTurn(async () => this.#over.signal.aborted || this.#book(await extend()));
  }

  async #keepAlive(): Promise<void> {
    const third = this.spanMs / 3;
    while (await pause(third, this.#over.signal)) {
      // If it fails there is time for another; and what waits for its turn does not wait long.
      await this.#extend(undefined, Math.min(Math.max(third / 2, 100), this.queue.client.callTimeoutMs)).catch(warn);
    }
  }

  /** One call after the other: an Ack that overtook an Extend would make the lease look lost. */
  #inTurn<T>(call: () => Promise<T>): Promise<T> {
    const made = this.#turn.then(call);
    this.#turn = made.catch(() => undefined);
    return made;
  }

  /** Notes what the service said of this lease; throws if it has no say any more. `tooLate` is what else says so. */
  #book({ results }: { results: SettleResult[] }, tooLate = Settled.STALE): SettleResult {
    const result = results[0] as SettleResult; // always sent
    void (result.settled === Settled.EXTENDED || this.#over.abort());
    if ([Settled.STALE, Settled.GONE, tooLate].includes(result.settled)) {
      const isGone = result.settled === Settled.GONE;
      const code = isGone ? Code.NotFound : Code.FailedPrecondition;
      const reason = isGone ? ErrorReason.LEASE_GONE : ErrorReason.LEASE_STALE;
      const error = new HeadwayError("too late: the lease has no say", code, reason, { queue: this.queue.name });
      this.#lost.abort(error);
      throw error;
    }
    return result;
  }

  /** Works on the message and settles it, for `Queue`; `cancel` says whether what is thrown is to cost nothing. */
  async handle(handler: Handler, cancel?: AbortSignal): Promise<void> {
    try {
      const result = await handler(this);
      await this.#turn; // what is under way may settle it, or find it lost
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
function policyMs({ leaseExpiresAt, putAt, waited }: Delivery): number {
  const isKnown = leaseExpiresAt && putAt && waited;
  return isKnown ? timestampMs(leaseExpiresAt) - timestampMs(putAt) - durationMs(waited) : 100;
}
