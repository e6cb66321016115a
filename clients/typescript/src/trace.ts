/** Carries trace context in messages' headers, by the OpenTelemetry API and its propagator where the user has them. */

type Api = typeof import("@opentelemetry/api");

/** OpenTelemetry's `Context`, told again so that the types of who has no OpenTelemetry are whole. */
export interface TraceContext {
  getValue(key: symbol): unknown;
  setValue(key: symbol, value: unknown): TraceContext;
  deleteValue(key: symbol): TraceContext;
}

let api: Promise<Api | undefined> | undefined;

function load(): Promise<Api | undefined> {
  api ??= import("@opentelemetry/api").catch(() => undefined);
  return api;
}

/** The headers that name the span which is current; none without one, or without OpenTelemetry. */
export async function currentHeaders(): Promise<Record<string, string>> {
  const found = await load();
  const headers = {};
  found?.propagation.inject(found.context.active(), headers);
  return headers;
}

/** OpenTelemetry's context of whoever put a message, the root if none is named; undefined without OpenTelemetry. */
export async function contextOf(headers: Record<string, string>): Promise<TraceContext | undefined> {
  const found = await load();
  return found?.propagation.extract(found.ROOT_CONTEXT, headers);
}
