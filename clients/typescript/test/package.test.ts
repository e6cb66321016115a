import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { type Context, context, propagation, ROOT_CONTEXT, type TextMapPropagator, trace } from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { CompositePropagator, W3CTraceContextPropagator } from "@opentelemetry/core";
import { contextOf, currentHeaders, traced } from "#dist/trace.js";

test("what browsers get imports nothing of Node's", () => {
  const seen = new Set<URL["href"]>();
  const foreign = new Set<string>();
  const read = (url: URL) => {
    if (seen.has(url.href)) {
      return;
    }
    seen.add(url.href);
    for (const [, name = ""] of readFileSync(url, "utf8").matchAll(/(?:from|import)\s*\(?"([^"]+)"/g)) {
      if (name.startsWith(".")) {
        read(new URL(name, url));
      } else {
        foreign.add(name);
      }
    }
  };
  read(new URL(import.meta.resolve("@headway/client/web")));
  read(new URL(import.meta.resolve("@headway/client/v1")));
  const allowed = /^@bufbuild\/protobuf|^@connectrpc\/connect($|\/)|^@opentelemetry\/api$/;
  assert.ok(seen.size > 10);
  assert.deepEqual(
    [...foreign].filter((name) => !allowed.test(name)),
    [],
  );
});

test("the types are whole without OpenTelemetry", () => {
  const folder = new URL(".", import.meta.resolve("@headway/client"));
  const types = readdirSync(folder).filter((name) => name.endsWith(".d.ts"));
  assert.ok(types.includes("lease.d.ts"));
  assert.deepEqual(
    types.filter((name) => readFileSync(new URL(name, folder), "utf8").includes("@opentelemetry")),
    [],
  );
});

test("trace context goes into headers only while a span is current, and comes back out", async () => {
  const baggage = { inject: (_: unknown, carrier: object) => Object.assign(carrier, { baggage: "a=b" }) };
  const others = { ...baggage, extract: (found: Context) => found, fields: () => ["baggage"] } as TextMapPropagator;
  propagation.setGlobalPropagator(new CompositePropagator({ propagators: [new W3CTraceContextPropagator(), others] }));
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  assert.deepEqual(await currentHeaders(), {});
  const span = { traceId: "4bf92f3577b34da6a3ce929d0e0e4736", spanId: "00f067aa0ba902b7", traceFlags: 1 };
  const headers = await context.with(trace.setSpanContext(ROOT_CONTEXT, span), currentHeaders);
  assert.deepEqual(headers, { traceparent: `00-${span.traceId}-${span.spanId}-01` });
  const found = trace.getSpanContext((await contextOf({ ...headers, tracestate: "a=b" })) ?? ROOT_CONTEXT);
  assert.equal(found?.spanId, span.spanId);
  assert.equal(found?.traceState?.serialize(), "a=b");
  assert.equal(found?.isRemote, true);
});

test("trace context that finds no room in a message is left out", () => {
  const parent = { traceparent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" };
  const many = { headers: Object.fromEntries(Array.from({ length: 64 }, (_, n) => [`own-${n}`, "x"])) };
  const full = { payload: new Uint8Array(1024 * 1024 - 10) };
  const own = { headers: { traceparent: "own" } };
  assert.deepEqual(
    [many, full, own].map((message) => traced(message, parent)),
    [many, full, own],
  );
  assert.deepEqual(traced({ id: "a", headers: { of: "test" } }, parent).headers, { of: "test", ...parent });
});
