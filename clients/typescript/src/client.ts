/** The client: the generated stubs over a dependable transport, and handles for queues. Knows neither Node nor browser. */
import { createClient, type Interceptor, type Client as Stub, type Transport } from "@connectrpc/connect";
import type { Lease } from "./lease.js";
import { Queue } from "./queue.js";
import { dependable } from "./transport.js";
import { AdminService, QueueService } from "./v1.js";

/** Gives each call its bearer token, asked for anew: an interceptor for `connect`, or for a transport of your own. */
export function bearer(token: () => string | Promise<string>): Interceptor {
  return (next) => async (request) => {
    request.header.set("authorization", `Bearer ${(await token()).trim()}`);
    return next(request);
  };
}

/** One connection to the service and all that it can do. `close` it, or declare it with `await using`. */
export class Client implements AsyncDisposable {
  /** The calls of producers, workers and watchers, as generated; their errors are HeadwayError. */
  readonly queues: Stub<typeof QueueService>;
  /** The calls of operators, likewise. */
  readonly admin: Stub<typeof AdminService>;
  /** The leases that are not settled; the layer's own. */
  readonly held = new Set<Lease>();
  /** Aborted when the client is about to be closed; the layer's own. */
  readonly closing = new AbortController();

  /**
   * A client over any transport of Connect's that speaks gRPC, or what a proxy makes of it; it is closed with the
   * client if it can be. A call may take `callTimeoutMs` beyond the `wait` that it asks for.
   */
  constructor(
    readonly transport: Transport & { close?: () => void },
    readonly callTimeoutMs = 10_000,
  ) {
    const inner = dependable(transport, callTimeoutMs);
    this.queues = createClient(QueueService, inner);
    this.admin = createClient(AdminService, inner);
  }

  /** A handle for the queue of this name; it need not be there yet. */
  readonly queue = (name: string): Queue => new Queue(this, name);

  /**
   * Ends what runs, gives back every lease that is held, at once and for free, and closes the connection. What is being
   * settled it lets end, but takes no longer than `callTimeoutMs`. What a Get that waits is answered in that very moment may
   * lapse by itself, at the cost of an attempt; aborting its `signal`, and awaiting its end, before gives that back.
   */
  async close(): Promise<void> {
    this.closing.abort();
    const late = new Promise((resolve) => AbortSignal.timeout(this.callTimeoutMs).addEventListener("abort", resolve));
    await Promise.race([late, Promise.all([...this.held].map((lease) => lease.giveBack()))]);
    this.transport.close?.();
  }

  readonly [Symbol.asyncDispose] = this.close;
}
