/** Connects from Node: which addresses, one HTTP/2 session to each host, and whose turn it is. */
import { lookup } from "node:dns/promises";
import { Code, type Interceptor, type Transport } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { Client, type ClientOptions } from "./client.js";
import { HeadwayError } from "./errors.js";
import { link, pause } from "./timing.js";

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
  const given = addresses || process.env.HEADWAY_ADDRESS || "127.0.0.1:7420";
  const urls = (typeof given === "string" ? given.split(",") : given).map((each) => each.trim());
  const hosts = new Hosts(
    urls.map((each) => new URL(each.includes("://") ? each : `http://${each}`)),
    interceptors,
  );
  return new Client(hosts, { ...options, onClose: () => hosts.close() });
}

// The service allows pings every 10 s and more.
const KEEPALIVE = { pingIntervalMs: 20_000, pingTimeoutMs: 10_000 };
const SESSION = { settings: { initialWindowSize: 1024 * 1024 }, maxSessionMemory: 64 }; // batches of megabytes
const CONNECT_MS = 5_000; // how long a connection may take
const RETRY_MS = 1_000; // while others are connected, one that is not is tried again after this time
const RESOLVE_MS = 30_000; // names are looked up again after this time

type Host = { readonly manager: Http2SessionManager; readonly transport: Transport; triedAt: number };

/** A transport to all hosts that some addresses stand for, in turn. */
class Hosts implements Transport {
  #known = new Map<string, Host>();
  #resolved: Promise<void> | undefined;
  #resolvedAt = 0;
  #turn = 0;

  constructor(
    readonly urls: readonly URL[],
    readonly interceptors?: Interceptor[],
  ) {}

  unary: Transport["unary"] = async (method, signal, timeoutMs = CONNECT_MS, ...rest) => {
    const deadline = Date.now() + timeoutMs;
    const host = await this.#next(signal, timeoutMs);
    return host.unary(method, signal, Math.max(1, deadline - Date.now()), ...rest);
  };

  stream: Transport["stream"] = async (method, signal, ...rest) =>
    (await this.#next(signal)).stream(method, signal, ...rest);

  /** The next in turn of those that are connected; the others are tried behind the scenes. Throws Unavailable. */
  async #next(signal = new AbortController().signal, timeoutMs = CONNECT_MS): Promise<Transport> {
    signal.throwIfAborted();
    const now = Date.now();
    if (now - this.#resolvedAt > RESOLVE_MS) {
      this.#resolvedAt = now;
      this.#resolved = this.#resolve();
    }
    await this.#resolved;
    const hosts = [...this.#known.values()];
    const due = hosts.filter(
      (host) => !isConnected(host) && (now - host.triedAt > RETRY_MS || !hosts.some(isConnected)),
    );
    const connecting = due.map(async (host) => {
      host.triedAt = now;
      return (await host.manager.connect()) === "error" ? Promise.reject(host.manager.error()) : undefined;
    });
    const any = Promise.any(connecting).catch(() => undefined);
    const within = Math.min(CONNECT_MS, timeoutMs);
    await (hosts.some(isConnected) || before(any, within, signal));
    const connected = hosts.filter(isConnected);
    const first = this.#turn++;
    for (const offset of connected.keys()) {
      const host = connected[(first + offset) % connected.length] as Host;
      if ((await before(host.manager.connect(), within, signal)) !== "error") {
        return host.transport;
      }
    }
    this.#resolvedAt = 0;
    const cause = hosts[0]?.manager.error() ?? "no answer";
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
      return [origin, this.#known.get(origin) ?? { manager, transport: createGrpcTransport(own), triedAt: 0 }] as const;
    });
    this.#known = new Map(hosts);
  }
}

function isConnected({ manager }: Host): boolean {
  return ["open", "idle", "verifying"].includes(manager.state());
}

/** What is promised; "error" if that takes too long. Throws if the signal is aborted first. */
async function before<T>(promised: Promise<T>, ms: number, signal: AbortSignal): Promise<T | "error"> {
  const done = new AbortController();
  const { signal: until, unlink } = link(signal, done.signal);
  const late = pause(ms, until).then(() => "error" as const);
  const result = await Promise.race([promised, late]);
  done.abort(); // no timer is left behind
  unlink();
  signal.throwIfAborted();
  return result;
}
