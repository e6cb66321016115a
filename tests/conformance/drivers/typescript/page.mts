/** What a page of tests/browser can do: calls by the official connect-web client, asked and told as JSON. */
import { type DescMethod, fromJson, type JsonValue, type Message, toJson } from "@bufbuild/protobuf";
import { Code, ConnectError, createClient, type Interceptor } from "@connectrpc/connect";
import { createConnectTransport, createGrpcWebTransport } from "@connectrpc/connect-web";
import { AdminService, QueueService } from "@headway/client/v1";
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from "#dist/gen/google/rpc/error_details_pb.js";

type Told = { ok: JsonValue } | { end: true } | { error: unknown };
// biome-ignore lint/suspicious/noExplicitAny: which of the stubs it is only the test knows
type Stub = any;
type Answer = IteratorResult<Message>;
type Stream = {
  answers: AsyncIterator<Message>;
  first?: Promise<Answer>;
  method: DescMethod;
  leaving: AbortController;
};

const TRANSPORTS = { connect: createConnectTransport, "grpc-web": createGrpcWebTransport };
const streams: Stream[] = [];
let stubs: Stub[] = [];

/** Calls go there from now on, in the format that is the transport's own unless `useBinaryFormat` says. */
function connect(protocol: keyof typeof TRANSPORTS, baseUrl: string, token?: string, useBinaryFormat?: boolean): void {
  const bearing: Interceptor = (next) => (request) => {
    request.header.set("authorization", `Bearer ${token}`);
    return next(request);
  };
  const interceptors = token === undefined ? [] : [bearing];
  const transport = TRANSPORTS[protocol]({ baseUrl, interceptors, useBinaryFormat });
  stubs = [createClient(QueueService, transport), createClient(AdminService, transport)];
}

/** One call of one answer. */
async function call(rpc: string, request: JsonValue, timeoutMs?: number): Promise<Told> {
  const { method, stub } = rpcOf(rpc);
  try {
    return { ok: toJson(method.output, await stub(fromJson(method.input, request), { timeoutMs })) };
  } catch (error) {
    return { error: told(error) };
  }
}

/** Opens a stream of answers; its number. */
function open(rpc: string, request: JsonValue, timeoutMs?: number): number {
  const { method, stub } = rpcOf(rpc);
  const leaving = new AbortController();
  const sent = fromJson(method.input, request);
  const answers = stub(sent, { signal: leaving.signal, timeoutMs })[Symbol.asyncIterator]();
  const first: Promise<Answer> = answers.next();
  first.catch(() => undefined); // told by `next`; until then nobody hears of it
  return streams.push({ answers, first, method, leaving }) - 1;
}

/** What a stream tells next. */
async function next(number: number): Promise<Told> {
  const stream = streamOf(number);
  const { answers, method, first } = stream;
  stream.first = undefined;
  try {
    const answer = await (first ?? answers.next());
    return answer.done ? { end: true } : { ok: toJson(method.output, answer.value) };
  } catch (error) {
    return { error: told(error) };
  }
}

/** Leaves a stream. */
function abort(number: number): void {
  streamOf(number).leaving.abort();
}

function rpcOf(rpc: string): { method: DescMethod; stub: Stub } {
  for (const [index, service] of [QueueService, AdminService].entries()) {
    const method = service.methods.find(({ name }) => name === rpc);
    if (method !== undefined) {
      return { method, stub: stubs[index][method.localName] };
    }
  }
  throw new Error(`no RPC ${rpc}`);
}

function streamOf(number: number): Stream {
  const stream = streams[number];
  if (stream === undefined) {
    throw new Error(`no stream ${number}`);
  }
  return stream;
}

/** What the official client makes of an error, with the details it can decode. */
function told(error: unknown) {
  if (!(error instanceof ConnectError)) {
    throw error;
  }
  const [info] = error.findDetails(ErrorInfoSchema);
  const [retry] = error.findDetails(RetryInfoSchema);
  return {
    code: Code[error.code],
    text: error.rawMessage,
    reason: info?.reason ?? null,
    metadata: info?.metadata ?? {},
    retry: retry ? toJson(RetryInfoSchema, retry) : null,
    fields: error.findDetails(BadRequestSchema).flatMap((each) => each.fieldViolations.map(({ field }) => field)),
  };
}

Object.assign(globalThis, { headway: { connect, call, open, next, abort } });
