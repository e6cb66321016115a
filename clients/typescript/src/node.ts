/** Connects from Node: which addresses, one HTTP/2 session to each host, and whose turn it is. */
import { lookup } from "node:dns/promises";
import { Code, type Interceptor, type Transport } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { Client, type ClientOptions } from "./client.js";
import { HeadwayError } from "./errors.js";
import { pause } from "./timing.js";

/** How to connect. */
export interface ConnectOptions extends Omit<ClientOptions, "onClose"> {
  /** `host:port`, or `https://host:port`. Unset: HEADWAY_ADDRESS (comma separated), else 127.0.0.1:7420. */
  addresses?: string | readonly string[];
  /** Connect's interceptors, for example one that sends credentials. */
  interceptors?: Interceptor[];
}

/**
 * A client for the service at these addresses. Connects with the first call, so it does not fail.
 *
 * Calls go in turn to all hosts that the addresses stand for; those that cannot be reached are passed over.
 */
export function connect({ addresses, interceptors, ...options }: ConnectOptions = {}): Client {
  const given = addresses ?? process.env.HEADWAY_ADDRESS ?? "127.0.0.1:7420";
  const urls = (typeof given === "string" ? given.split(",") : given).map((each) => each.trim());
  const hosts = new Hosts(
    urls.map((each) => new URL(each.includes("://") ? each : `http://${each}`)),
    interceptors,
  );
  const transport: Transport = {
    async unary(method, signal, timeoutMs = CONNECT_MS, ...rest) {
      const deadline = Date.now() + timeoutMs;
      const host = await hosts.next(signal, timeoutMs);
      return host.unary(method, signal, Math.max(1, deadline - Date.now()), ...rest);
    },
    async stream(method, signal, ...rest) {
      return (await hosts.next(signal)).stream(method, signal, ...rest);
    },
  };
  return new Client(transport, { ...options, onClose: () => hosts.close() });
}

// The service allows pings every 10 s and more.
const KEEPALIVE = { pingIntervalMs: 20_000, pingTimeoutMs: 10_000 };
const SESSION = { settings: { initialWindowSize: 1024 * 1024 }, maxSessionMemory: 64 }; // batches of megabytes
const CONNECT_MS = 5_000; // how long one host may take to answer
const RETRY_MS = 1_000; // one that failed is asked last for so long
const RESOLVE_MS = 30_000; // names are looked up again after this time

type Host = { readonly manager: Http2SessionManager; readonly transport: Transport; failedAt: number };

/** All hosts that some addresses stand for, and whose turn it is. */
class Hosts {
  #known = new Map<string, Host>();
  #resolved: Promise<void> | undefined;
  #resolvedAt = 0;
  #turn = 0;

  constructor(
    readonly urls: readonly URL[],
    readonly interceptors?: Interceptor[],
  ) {}

  /** A host with a connection: the next one in turn, but those that failed just now last. Throws Unavailable. */
  async next(signal = new AbortController().signal, timeoutMs = CONNECT_MS): Promise<Transport> {
    signal.throwIfAborted();
    if (Date.now() - this.#resolvedAt > RESOLVE_MS) {
      this.#resolvedAt = Date.now();
      this.#resolved = this.#resolve();
    }
    await this.#resolved;
    const hosts = [...this.#known.values()];
    const first = this.#turn++ % hosts.length;
    const isFailed = (host: Host) => Number(Date.now() - host.failedAt < RETRY_MS);
    const inTurn = [...hosts.slice(first), ...hosts.slice(0, first)].sort((a, b) => isFailed(a) - isFailed(b));
    for (const host of inTurn) {
      const done = new AbortController();
      const limit = pause(Math.min(CONNECT_MS, timeoutMs), done.signal).then(() => "error");
      signal.addEventListener("abort", () => done.abort(), { once: true, signal: done.signal });
      const state = await Promise.race([host.manager.connect(), limit]);
      done.abort(); // nothing is left behind
      if (state !== "error") {
        return host.transport;
      }
      signal.throwIfAborted();
      host.failedAt = Date.now();
    }
    const cause = inTurn[0]?.manager.error() ?? "no answer";
    throw new HeadwayError(`no connection to ${this.urls.map((url) => url.host)}: ${cause}`, Code.Unavailable);
  }

  close(): void {
    for (const { manager } of this.#known.values()) {
      manager.abort();
    }
  }

  /** Looks the names up: a name of several hosts stands for each. With TLS, which checks it, it stays a name. */
  async #resolve(): Promise<void> {
    const origins = this.urls.map(async ({ origin, hostname, protocol, port }) => {
      const found = protocol === "http:" ? await lookup(hostname, { all: true }).catch(() => []) : [];
      const each = found.map(({ address, family }) => `http://${family === 6 ? `[${address}]` : address}:${port}`);
      return each.length > 1 ? each : [origin];
    });
    const hosts = (await Promise.all(origins)).flat().map((origin) => {
      const manager = new Http2SessionManager(origin, KEEPALIVE, SESSION); // connects when it is used
      const own = { baseUrl: origin, sessionManager: manager, interceptors: this.interceptors };
      return [
        origin,
        this.#known.get(origin) ?? { manager, transport: createGrpcTransport(own), failedAt: 0 },
      ] as const;
    });
    this.#known = new Map(hosts);
  }
}
