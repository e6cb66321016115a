/** Connects from Node: which addresses, one HTTP/2 session to each, and whose turn it is. */
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
 * Calls go in turn to every address, and to every host that a name stands for; one that cannot be reached is passed over.
 */
export function connect({ addresses, interceptors, ...options }: ConnectOptions = {}): Client {
  const given = addresses ?? process.env["HEADWAY_ADDRESS"] ?? "127.0.0.1:7420";
  const urls = (typeof given === "string" ? given.split(",") : given).map((each) => each.trim());
  const turns = new Turns(urls.map((each) => new URL(each.includes("://") ? each : `http://${each}`)));
  const make = (member: Member) =>
    createGrpcTransport({ baseUrl: member.manager.authority, sessionManager: member.manager, interceptors });
  const transport: Transport = {
    async unary(method, signal, timeoutMs, ...rest) {
      const begun = Date.now();
      const member = await turns.next(timeoutMs, signal);
      const left = timeoutMs && Math.max(1, timeoutMs - (Date.now() - begun));
      return make(member).unary(method, signal, left, ...rest);
    },
    async stream(method, signal, ...rest) {
      return make(await turns.next(undefined, signal)).stream(method, signal, ...rest);
    },
  };
  return new Client(transport, { ...options, onClose: () => turns.close() });
}

// The service allows pings every 10 s and more.
const KEEPALIVE = { pingIntervalMs: 20_000, pingTimeoutMs: 10_000 };
const SESSION = { settings: { initialWindowSize: 1024 * 1024 }, maxSessionMemory: 64 }; // batches of megabytes
const CONNECT_MS = 5_000; // how long one address may take to answer
const RETRY_MS = 1_000; // one that failed is asked last for so long
const RESOLVE_MS = 30_000; // names are looked up again after this time

interface Member {
  readonly manager: Http2SessionManager;
  failedAt: number;
}

/** Whose turn it is among all hosts that the addresses stand for. */
class Turns {
  #members = new Map<string, Member>();
  #resolved: Promise<void> | undefined;
  #resolvedAt = 0;
  #turn = 0;

  constructor(readonly urls: readonly URL[]) {}

  /** A host that has a connection now; they are tried in turn, those that failed just now last. Throws UNAVAILABLE. */
  async next(timeoutMs = CONNECT_MS, signal?: AbortSignal): Promise<Member> {
    if (Date.now() - this.#resolvedAt > RESOLVE_MS) {
      this.#resolvedAt = Date.now();
      this.#resolved = this.#resolve();
    }
    await this.#resolved;
    const members = [...this.#members.values()];
    const first = this.#turn++ % (members.length || 1);
    const inTurn = [...members.slice(first), ...members.slice(0, first)];
    const isFailed = (each: Member) => Number(Date.now() - each.failedAt < RETRY_MS);
    let cause: unknown = "no address";
    for (const member of inTurn.sort((a, b) => isFailed(a) - isFailed(b))) {
      const limit = pause(Math.min(CONNECT_MS, timeoutMs), signal).then(() => "error");
      if ((await Promise.race([member.manager.connect(), limit])) !== "error") {
        return member;
      }
      signal?.throwIfAborted();
      member.failedAt = Date.now();
      cause = member.manager.error() ?? "no answer";
      member.manager.abort();
    }
    this.#resolvedAt = 0;
    throw new HeadwayError(`no connection to ${this.urls.map((each) => each.host)}: ${cause}`, Code.Unavailable, {
      cause,
    });
  }

  close(): void {
    for (const { manager } of this.#members.values()) {
      manager.abort();
    }
  }

  /** Looks the names up. A name of several hosts is one member for each; one that cannot be resolved stays a name. */
  async #resolve(): Promise<void> {
    const hosts = this.urls.map(async (url) => {
      const found = await lookup(url.hostname, { all: true }).catch(() => []);
      const several = found.length > 1 && url.protocol === "http:" ? found : [];
      return several.map(({ address, family }) => `http://${family === 6 ? `[${address}]` : address}:${url.port}`);
    });
    const origins = (await Promise.all(hosts)).flatMap((each, i) =>
      each.length ? each : [String(this.urls[i]?.origin)],
    );
    const members = origins.map((origin) => {
      const manager = () => new Http2SessionManager(origin, KEEPALIVE, SESSION);
      return [origin, this.#members.get(origin) ?? { manager: manager(), failedAt: 0 }] as const;
    });
    this.#members = new Map(members);
  }
}
