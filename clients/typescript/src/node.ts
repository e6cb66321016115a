/** Connects from Node: one HTTP/2 session to each address, and whose turn it is. */
import type { SecureContextOptions } from "node:tls";
import { Code, type Interceptor, type Transport } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { Client } from "./client.js";
import { HeadwayError } from "./errors.js";

/**
 * Where to connect, `host:port` or `https://host:port` (unset: HEADWAY_ADDRESS, comma separated, else 127.0.0.1:7420),
 * and how many milliseconds a call may take beyond the `wait` that it asks for (unset: 10,000).
 */
export type ConnectOptions = { addresses?: readonly string[]; callTimeoutMs?: number } & SecureOptions;

/**
 * Node's own options of TLS: the authorities to trust (`ca`; unset: Node's) and a certificate to show; with them a
 * `host:port` is https. And Connect's interceptors, such as `bearer`.
 */
export type SecureOptions = { tls?: SecureContextOptions; interceptors?: Interceptor[] };

/**
 * A client for the service at these addresses. Connects with the first call, so it does not fail.
 *
 * Calls go to all addresses in turn; those that cannot be reached are passed over.
 */
export function connect({ addresses, callTimeoutMs, tls, interceptors }: ConnectOptions = {}): Client {
  const hosts = (addresses ?? process.env.HEADWAY_ADDRESS?.match(/[^\s,]+/g) ?? ["127.0.0.1:7420"]).map((each) => {
    const baseUrl = each.includes("://") ? each.trim() : `${tls ? "https" : "http"}://${each.trim()}`;
    // Connects when it is used. The service allows pings every 10 s and more.
    const manager = new Sessions(baseUrl, { pingIntervalMs: 20_000, pingTimeoutMs: 10_000 }, { ...SESSION, ...tls });
    return { manager, transport: createGrpcTransport({ baseUrl, sessionManager: manager, interceptors }) };
  });
  return new Client(new Hosts(hosts), callTimeoutMs);
}

const SESSION = { settings: { initialWindowSize: 1024 * 1024 }, maxSessionMemory: 64 }; // batches of megabytes

/** Its own kind leaves sessions behind whose late error would end the process (connect-es, issue 1768). */
class Sessions extends Http2SessionManager {
  override async request(...asked: Parameters<Http2SessionManager["request"]>) {
    const stream = await super.request(...asked);
    void (stream.session?.listenerCount("error") === 1 && stream.session.on("error", () => undefined)); // one: its own
    return stream;
  }
}

/** A transport to several hosts in turn: Connect has none. Without any it is closed. */
class Hosts implements Transport {
  #turn = 0;

  constructor(readonly hosts: { manager: Http2SessionManager; transport: Transport }[]) {}

  unary: Transport["unary"] = async (method, ...rest) => this.#next().unary(method, ...rest);

  stream: Transport["stream"] = async (method, ...rest) => this.#next().stream(method, ...rest);

  close = (): void => this.hosts.splice(0).forEach(({ manager }) => void manager.abort());

  /** The next in turn of those that are connected, or of all if none is; the others are tried behind the scenes. */
  #next(): Transport {
    const connected = this.hosts.filter(({ manager }) => ["open", "idle", "verifying"].includes(manager.state()));
    void Promise.all(this.hosts.map(({ manager }) => manager.connect())); // what fails is told to whose call needs it
    const hosts = connected.length > 0 ? connected : this.hosts;
    const host = hosts[this.#turn++ % hosts.length];
    if (host === undefined) {
      throw new HeadwayError("the client is closed", Code.Canceled);
    }
    return host.transport;
  }
}
