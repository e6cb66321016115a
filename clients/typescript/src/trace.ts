/** Carries trace context in messages' headers, by the OpenTelemetry API and its propagator where the user has them. */

import type { MessageInitShape } from "@bufbuild/protobuf";
import type { MessageSchema } from "./v1.js";

// What the service takes: so many headers, and by its default so many bytes of payload, id and headers in a message.
const MOST_HEADERS = 64;
const MOST_BYTES = 1024 * 1024;

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
  const headers: Record<string, string> = {};
  found?.propagation.inject(found.context.active(), headers);
  // Not what else a propagator carries, such as baggage.
  return Object.fromEntries(Object.entries(headers).filter(([key]) => key === "traceparent" || key === "tracestate"));
}

/** The message with these headers, unless it names a span, or has no room: they must not get it refused. */
export function traced(
  message: MessageInitShape<typeof MessageSchema>,
  context: Record<string, string>,
): MessageInitShape<typeof MessageSchema> {
  const headers = { ...context, ...message.headers };
  const texts = [message.id ?? "", ...Object.entries(headers).flat()];
  const bytes = new TextEncoder().encode(texts.join("")).length + (message.payload?.length ?? 0);
  const hasRoom = Object.keys(headers).length <= MOST_HEADERS && bytes <= MOST_BYTES;
  return hasRoom && !message.headers?.traceparent ? { ...message, headers } : message;
}

/** OpenTelemetry's context of whoever put a message, the root if none is named; undefined without OpenTelemetry. */
export async function contextOf(headers: Record<string, string>): Promise<TraceContext | undefined> {
  const found = await load();
  return found?.propagation.extract(found.ROOT_CONTEXT, headers);
}
