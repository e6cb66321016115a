import { connect } from "@headway/client";
import { context, propagation, ROOT_CONTEXT, trace } from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { W3CTraceContextPropagator } from "@opentelemetry/core";

propagation.setGlobalPropagator(new W3CTraceContextPropagator()); // your SDK does this
context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable()); // and this
const span = { traceId: "4bf92f3577b34da6a3ce929d0e0e4736", spanId: "00f067aa0ba902b7", traceFlags: 1 };

await using client = connect();
const traced = client.queue("typescript-traced");
await client.queues.create({ queue: traced.name });
await context.with(trace.setSpanContext(ROOT_CONTEXT, span), () => traced.put([{ payload: Buffer.from("x") }]));

await traced.withLease(async (lease) => {
  const parent = (await lease.traceContext()) ?? ROOT_CONTEXT; // start your span with it as the parent
  console.log(lease.message.headers.traceparent === `00-${trace.getSpanContext(parent)?.traceId}-${span.spanId}-01`);
});
await client.queues.delete({ queue: traced.name });
