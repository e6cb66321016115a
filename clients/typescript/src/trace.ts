/** Carries W3C trace context in messages' headers, by the OpenTelemetry API where the user has it. */

type Api = typeof import("@opentelemetry/api");

/** OpenTelemetry's `Context`, told again so that the types of who has no OpenTelemetry are whole. */
export interface TraceContext {
  getValue(key: symbol): unknown;
  setValue(key: symbol, value: unknown): TraceContext;
  deleteValue(key: symbol): TraceContext;
}

const PARENT = /^(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-|$)/;
let api: Promise<Api | undefined> | undefined;

function load(): Promise<Api | undefined> {
  api ??= import("@opentelemetry/api").catch(() => undefined);
  return api;
}

/** The headers that name the span which is current; none without one, or without OpenTelemetry. */
export async function currentHeaders(): Promise<Record<string, string>> {
  const found = await load();
  const span = found?.trace.getSpanContext(found.context.active());
  if (!found || !span || !found.isSpanContextValid(span)) {
    return {};
  }
  const flags = span.traceFlags.toString(16).padStart(2, "0");
  const state = span.traceState?.serialize();
  return { traceparent: `00-${span.traceId}-${span.spanId}-${flags}`, ...(state && { tracestate: state }) };
}

/** OpenTelemetry's context of whoever put a message; undefined if its headers name none, or without OpenTelemetry. */
export async function contextOf(headers: Record<string, string>): Promise<TraceContext | undefined> {
  const found = await load();
  const [, traceId, spanId, flags] = PARENT.exec(headers.traceparent ?? "") ?? [];
  if (!found || !traceId || !spanId || !flags) {
    return undefined;
  }
  const traceState = found.createTraceState(headers.tracestate);
  const span = { traceId, spanId, traceFlags: Number.parseInt(flags, 16), traceState, isRemote: true };
  return found.isSpanContextValid(span) ? found.trace.setSpanContext(found.ROOT_CONTEXT, span) : undefined;
}
