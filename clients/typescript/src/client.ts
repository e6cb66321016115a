/** The client: the generated stubs over a dependable transport, and handles for queues. Knows neither Node nor browser. */
import { createClient, type Client as Stub, type Transport } from "@connectrpc/connect";
import { AdminService } from "./gen/headway/v1/admin_service_pb.js";
import { QueueService } from "./gen/headway/v1/queue_service_pb.js";
import type { Lease } from "./lease.js";
import { Queue } from "./queue.js";
import { dependable } from "./transport.js";

/** What every client may be told. */
export interface ClientOptions {
  /** How long a call may take beyond the `wait` that it asks for, in milliseconds. Unset: 10,000. */
  callTimeoutMs?: number;
  /** Where the layer says what goes wrong behind the scenes. Unset: `console.warn`. */
  log?: (text: string, error: unknown) => void;
  /** Ends the transport; called by `close`. */
  onClose?: () => void;
}

/** One connection to the service and all that it can do. `close` it, or declare it with `await using`. */
export class Client implements AsyncDisposable {
  /** The calls of producers, workers and watchers, as generated; their errors are HeadwayError. */
  readonly queues: Stub<typeof QueueService>;
  /** The calls of operators, likewise. */
  readonly admin: Stub<typeof AdminService>;
  readonly callTimeoutMs: number;
  /** The leases that are not settled; the layer's own. */
  readonly held = new Set<Lease>();
  readonly #closing = new AbortController();
  readonly #closed = new AbortController();

  /** A client over any transport of Connect's that speaks gRPC, or what a proxy makes of it. */
  constructor(
    transport: Transport,
    readonly options: ClientOptions = {},
  ) {
    this.callTimeoutMs = options.callTimeoutMs ?? 10_000;
    const inner = dependable(transport, this.callTimeoutMs, this.#closed.signal);
    this.queues = createClient(QueueService, inner);
    this.admin = createClient(AdminService, inner);
  }

  /** A handle for the queue of this name; it need not be there yet. */
  queue(name: string): Queue {
    return new Queue(this, name);
  }

  /** Says what goes wrong behind the scenes; the layer's own. */
  log(text: string, error: unknown): void {
    const log = this.options.log ?? ((...what) => console.warn("headway: %s: %s", ...what));
    log(text, error);
  }

  /** Aborted when the client is about to be closed; the layer's own. */
  get closing(): AbortSignal {
    return this.#closing.signal;
  }

  /** Ends what runs, gives back every lease that is held, at once and for free, and closes the connection. */
  async close(): Promise<void> {
    this.#closing.abort();
    await Promise.all([...this.held].map((lease) => lease.giveBack()));
    this.#closed.abort();
    this.options.onClose?.();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}
