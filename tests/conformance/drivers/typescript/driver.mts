/** The conformance driver of TypeScript: does what the lines on stdin ask, by the layer of clients/typescript. */
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { create, type DescMessage, fromJson, type JsonValue, type Message, toJson } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { createWritableIterable, type WritableIterable } from "@connectrpc/connect/protocol";
import { createConnectTransport, createGrpcWebTransport } from "@connectrpc/connect-web";
import {
  bearer,
  Client,
  Code,
  connect,
  ErrorReason,
  HeadwayError,
  type Lease,
  type Queue,
  type SecureOptions,
} from "@headway/client";
import * as v1 from "@headway/client/v1";
import { context, createTraceState, propagation, ROOT_CONTEXT, trace } from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { W3CTraceContextPropagator } from "@opentelemetry/core";

// biome-ignore lint/suspicious/noExplicitAny: a line holds what its operation is documented to hold
type Line = Record<string, any>;
type Done = Line | undefined;

const { version } = JSON.parse(readFileSync(new URL(import.meta.resolve("@headway/client/package.json")), "utf8"));
propagation.setGlobalPropagator(new W3CTraceContextPropagator());
context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());

/** What a handler, or a lease's scope, throws when it is told to fail. */
class Failed extends Error {
  override readonly name = "Failed";
}

/** A promise that is settled from outside. */
class Told<T> {
  resolve!: (value: T) => void;
  reject!: (error: unknown) => void;
  readonly promise = new Promise<T>((resolve, reject) => Object.assign(this, { resolve, reject }));

  constructor() {
    this.promise.catch(() => undefined); // told to whoever awaits it; nobody need to
  }
}

/** Something that stays open between lines, until it is closed or its client leaves. */
class Handle {
  readonly ending = new AbortController();

  async close(): Promise<void> {
    this.ending.abort();
  }
}

/** Reads a stream item by item; what comes after a time-out is kept for the next time. */
class Reading<T> extends Handle {
  #pending: Promise<IteratorResult<T>> | undefined;

  constructor(
    readonly answers: AsyncIterator<T>,
    readonly tell: (answer: T) => Line,
    readonly requests?: { queue: WritableIterable<Message>; kind: DescMessage },
  ) {
    super();
  }

  async next(timeoutMs: number): Promise<Line> {
    this.#pending ??= this.answers.next();
    this.#pending.catch(() => undefined); // told to whoever reads on
    const timer = new Told<undefined>();
    const timeout = setTimeout(timer.resolve, timeoutMs, undefined);
    const answer = await Promise.race([this.#pending, timer.promise]).finally(() => clearTimeout(timeout));
    if (answer === undefined) {
      return { timeout: true };
    }
    this.#pending = undefined;
    return answer.done ? { end: true } : this.tell(answer.value);
  }
}

/** A lease's scope, open until it is told how to end. */
class Held extends Handle {
  readonly entered = new Told<Lease | undefined>();
  readonly #end = new Told<Line>();
  readonly #scope: Promise<boolean>;

  constructor(queue: Queue, { wait_ms, lease_ms }: Line, signal: AbortSignal) {
    super();
    const until = AbortSignal.any([signal, this.ending.signal]);
    this.#scope = queue.withLease(
      async (lease) => {
        this.entered.resolve(lease);
        return bytes((await unlessGivenUp(lease, this.#end)).result);
      },
      { waitMs: wait_ms, leaseMs: lease_ms, signal: until },
    );
    this.#scope.then(() => this.entered.resolve(undefined), this.entered.reject);
  }

  async end(line: Line): Promise<void> {
    if (line.how === "return") {
      this.#end.resolve(line);
      await this.#scope;
    } else if (line.how === "fail") {
      this.#end.reject(new Failed());
      await this.#scope.catch(() => undefined);
    } else {
      await this.close();
    }
  }

  override async close(): Promise<void> {
    this.ending.abort();
    this.#end.reject(this.ending.signal.reason); // a lease that was lost does not hear of the signal
    await this.#scope.catch(() => undefined);
  }
}

/** A worker, whose handlers wait until they are told how to end. */
class Working extends Handle {
  readonly stop = new AbortController();
  readonly handling = new Map<string, Told<Line>>();
  #count = 0;

  constructor(name: string, queue: Queue, { concurrency, lease_ms }: Line) {
    super();
    const handler = async (lease: Lease) => {
      const [told, id] = [new Told<Line>(), `${name}/${++this.#count}`];
      this.handling.set(id, told);
      tell({ event: "handling", handle: name, lease: id, ...(await toldOf(lease)) });
      const end = await unlessGivenUp(lease, told, () => tell({ event: "cancelled", handle: name, lease: id }));
      if (end.how === "fail") {
        throw new Failed(end.reason);
      }
      return bytes(end.result);
    };
    const options = { concurrency, leaseMs: lease_ms, stop: this.stop.signal };
    const ended = (error: unknown) => tell({ event: "ended", handle: name, error });
    queue.work(handler, options).then(
      () => ended(null),
      (error) => ended(errorOf(error)),
    );
  }

  override async close(): Promise<void> {
    this.stop.abort(); // what is held goes back when the client is closed
  }
}

const clients = new Map<string, Client>();
const handles = new Map<string, Handle>();
const cancels = new Map<number, AbortController>();

const operations: Record<string, (line: Line, signal: AbortSignal) => Done | Promise<Done>> = {
  hello: () => ({
    language: "typescript",
    version,
    features: "call stream lease work watch trace".split(" "),
  }),
  connect: ({ client, addresses, options }) => {
    clients.set(client, connected(addresses, options ?? {}));
    return {};
  },
  disconnect: async ({ client }) => {
    const left = clients.get(client);
    clients.delete(client);
    const own = [...handles.keys()].filter((key) => key.startsWith(`${client}\n`));
    await Promise.all(own.map((key) => taken(key).close()));
    await left?.close();
    return {};
  },
  cancel: ({ target }) => {
    cancels.get(target)?.abort();
    return {};
  },
  call: async (line, signal) => {
    const { method, stub } = rpcOf(line);
    const options = { signal, timeoutMs: line.timeout_ms }; // how often it is made the layer decides
    return { response: toJson(method.output, await stub(fromJson(method.input, line.request), options)) };
  },
  open: (line) => {
    const { method, stub } = rpcOf(line);
    const queue = createWritableIterable<Message>();
    const request = line.request === undefined ? queue : fromJson(method.input, line.request);
    const ending = new AbortController();
    const answers = stub(request, { signal: ending.signal, timeoutMs: line.timeout_ms ?? 0 });
    const read = (answer: Message) => ({ response: toJson(method.output, answer) });
    const reading = new Reading<Message>(answers[Symbol.asyncIterator](), read, { queue, kind: method.input });
    reading.ending.signal.addEventListener("abort", () => ending.abort());
    handles.set(keyOf(line), reading);
    return {};
  },
  send: (line) => {
    const { queue, kind } = handleOf<Reading<Message>>(line).requests ?? fail("the stream takes no requests");
    queue.write(fromJson(kind, line.request)).catch(() => undefined); // why it ended is told by `next`
    return {};
  },
  half_close: (line) => {
    handleOf<Reading<Message>>(line).requests?.queue.close();
    return {};
  },
  next: (line) => handleOf<Reading<unknown>>(line).next(line.timeout_ms),
  close: async (line) => {
    await taken(keyOf(line)).close();
    return {};
  },
  put: async (line, signal) => {
    const messages = line.messages.map(({ payload, id, headers, delay_ms, ttl_ms }: Line) => ({
      ...{
        payload: bytes(payload),
        id,
        headers,
        timeToLive: ttl_ms === undefined ? undefined : durationFromMs(ttl_ms),
      },
      available: delay_ms === undefined ? undefined : { case: "delay", value: durationFromMs(delay_ms) },
    }));
    const put = () => queueOf(line).put(messages, { waitMs: line.wait_ms, signal });
    const results = await context.with(contextOf(line), put);
    return { results: results.map((result) => toJson(v1.PutResultSchema, result)) };
  },
  lease: async (line, signal) => {
    const held = new Held(queueOf(line), line, signal);
    const lease = await held.entered.promise;
    if (lease === undefined) {
      return { empty: true };
    }
    handles.set(keyOf(line), held);
    return toldOf(lease);
  },
  lease_end: async (line) => {
    await (taken(keyOf(line)) as Held).end(line);
    return {};
  },
  lease_ack: async (line) => {
    await (await leaseOf(line)).ack(bytes(line.result));
    return {};
  },
  lease_delay: async (line) => {
    await (await leaseOf(line)).delay({ delayMs: line.delay_ms, reason: line.reason });
    return {};
  },
  lease_progress: async (line) => {
    await (await leaseOf(line)).progress(line.fraction, line.note);
    return {};
  },
  lease_is_lost: async (line) => ({ lost: isLost(await leaseOf(line)) }),
  work: (line) => {
    handles.set(keyOf(line), new Working(line.handle, queueOf(line), line));
    return {};
  },
  finish: (line) => {
    const { handling } = handleOf<Working>(line);
    handling.get(line.lease)?.resolve(line);
    return handling.delete(line.lease) ? {} : fail("no such lease");
  },
  work_stop: (line) => {
    handleOf<Working>(line).stop.abort();
    return {};
  },
  watch: (line) => {
    const ending = new AbortController();
    const updates = queueOf(line).watch(line.ids, { attended: line.attended, signal: ending.signal });
    const reading = new Reading(updates, (update) => ({ event: eventOf(update) }));
    reading.ending.signal.addEventListener("abort", () => ending.abort());
    handles.set(keyOf(line), reading);
    return {};
  },
  watch_next: (line) => handleOf<Reading<unknown>>(line).next(line.timeout_ms),
  watch_close: async (line) => {
    await taken(keyOf(line)).close();
    return {};
  },
};

/** By gRPC, or at the HTTP port by the transport and in the format that the command line names. */
function connected(addresses: string[], options: Line): Client {
  const [protocol, format] = process.argv.slice(2);
  const callTimeoutMs = options.call_timeout_ms;
  if (protocol === undefined) {
    return connect({ addresses, callTimeoutMs, ...secured(options) });
  }
  const create = { connect: createConnectTransport, "grpc-web": createGrpcWebTransport }[protocol];
  const [baseUrl = fail("no address")] = addresses;
  const transport = create?.({ baseUrl, useBinaryFormat: format === "binary" }) ?? fail(`no protocol ${protocol}`);
  return new Client(transport, callTimeoutMs);
}

/** What a handler is told; fails when the work is to be given up, but not for a lease that was lost. */
function unlessGivenUp(lease: Lease, told: Told<Line>, onGiveUp?: () => void): Promise<Line> {
  const giveUp = () => {
    if (!isLost(lease)) {
      onGiveUp?.();
      told.reject(lease.signal.reason);
    }
  };
  lease.signal.addEventListener("abort", giveUp);
  return told.promise.finally(() => lease.signal.removeEventListener("abort", giveUp));
}

function isLost({ signal }: Lease): boolean {
  return signal.reason instanceof HeadwayError && signal.reason.is(ErrorReason.LEASE_STALE, ErrorReason.LEASE_GONE);
}

// biome-ignore lint/suspicious/noExplicitAny: which of the stubs it is only the line knows
function rpcOf(line: Line): { method: any; stub: any } {
  const [name, service] = String(line.rpc).split(".").reverse();
  const isAdmin = service === "AdminService";
  const method = (isAdmin ? v1.AdminService : v1.QueueService).methods.find((each) => each.name === name);
  const { admin, queues } = clients.get(line.client) ?? fail("no such client");
  // biome-ignore lint/suspicious/noExplicitAny: as above
  return { method, stub: ((isAdmin ? admin : queues) as any)[method?.localName ?? fail("no such RPC")] };
}

function eventOf({ event }: v1.WatchPositionResponse): Line {
  if (event.case === "position") {
    const { state, subject } = event.value;
    if (state === v1.State.DELAYED || state === v1.State.LEASED) {
      return { kind: state === v1.State.DELAYED ? "delayed" : "leased", id: subject.value };
    }
    return { kind: "position", ...objectOf(v1.PositionSchema, event.value) };
  }
  const schema = event.case === "leased" ? v1.LeasedSchema : v1.FinishedSchema;
  return { kind: event.case, ...objectOf(schema, event.value as Message) };
}

async function toldOf(lease: Lease): Promise<Line> {
  const { attempt, ticket } = lease.delivery;
  const span = trace.getSpanContext((await lease.traceContext()) ?? ROOT_CONTEXT);
  const traceparent = span ? `00-${span.traceId}-${span.spanId}-0${span.traceFlags}` : null;
  return { message: toJson(v1.MessageSchema, lease.message), attempt, ticket: String(ticket), traceparent };
}

/** OpenTelemetry's context with the span that the line names. */
function contextOf({ traceparent, tracestate }: Line) {
  const [, traceId = "", spanId = "", flags = ""] = String(traceparent ?? "").split("-");
  const traceState = tracestate === undefined ? undefined : createTraceState(tracestate);
  const span = { traceId, spanId, traceFlags: Number(flags), traceState };
  return traceparent === undefined ? ROOT_CONTEXT : trace.setSpanContext(ROOT_CONTEXT, span);
}

function errorOf(error: unknown): Line {
  const isOurs = error instanceof HeadwayError;
  const isCancelled = error instanceof DOMException && error.name === "AbortError";
  const code = isOurs ? (Code[error.code] ?? "Unknown").replace(/(?<=.)(?=[A-Z])/g, "_").toUpperCase() : "DRIVER";
  return {
    code: isCancelled || code === "CANCELED" ? "CANCELLED" : code,
    reason: isOurs && error.reason ? ErrorReason[error.reason] : null,
    metadata: isOurs ? error.metadata : {},
    retry_after_ms: (isOurs ? error.retryAfterMs : undefined) ?? null,
    violations: isOurs ? error.violations.map(({ field, description }) => ({ field, description })) : [],
    outcome_unknown: isOurs && error.isOutcomeUnknown,
    text: isOurs || isCancelled ? error.message : String((error as Error)?.stack ?? error),
  };
}

/** How a connect's options say TLS and a token, whose file is read for each call. */
function secured({ ca, cert, key, token_file }: Line): SecureOptions {
  const read = (path: string | undefined) => path && readFileSync(path);
  return {
    tls: ca && { ca: read(ca), cert: read(cert), key: read(key) },
    interceptors: token_file && [bearer(() => readFileSync(token_file, "utf8"))],
  };
}

function objectOf(schema: DescMessage, message: Message): Line {
  return toJson(schema, create(schema, message)) as Record<string, JsonValue>;
}

function bytes(base64: string | null | undefined): Uint8Array {
  return Uint8Array.from(Buffer.from(base64 ?? "", "base64"));
}

function queueOf({ client, queue }: Line): Queue {
  return (clients.get(client) ?? fail("no such client")).queue(queue);
}

function keyOf({ client, handle }: Line): string {
  return `${client}\n${handle}`;
}

function handleOf<T extends Handle>(line: Line): T {
  return (handles.get(keyOf(line)) ?? fail("no such handle")) as T;
}

async function leaseOf(line: Line): Promise<Lease> {
  return (await handleOf<Held>(line).entered.promise) ?? fail("no lease");
}

function taken(key: string): Handle {
  const handle = handles.get(key) ?? fail("no such handle");
  handles.delete(key);
  return handle;
}

function fail(what: string): never {
  throw new Error(what);
}

function tell(line: Line): void {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

async function answer(line: Line): Promise<void> {
  const cancel = new AbortController();
  cancels.set(line.id, cancel);
  try {
    const operation = operations[line.op] ?? fail(`no operation ${line.op}`);
    tell({ id: line.id, ok: (await operation(line, cancel.signal)) ?? {} });
  } catch (error) {
    tell({ id: line.id, error: errorOf(error) });
  } finally {
    cancels.delete(line.id);
  }
}

for await (const line of createInterface({ input: process.stdin, crlfDelay: Number.POSITIVE_INFINITY })) {
  void answer(JSON.parse(line));
}
await Promise.all([...clients.keys()].map((client) => operations.disconnect?.({ client }, AbortSignal.abort())));
