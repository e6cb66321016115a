import { connect, ErrorReason, HeadwayError } from "@headway/client";

await using client = connect();
const small = client.queue("typescript-small");
await client.queues.create({ queue: small.name, policy: { bound: 1 } });
await small.put([{ payload: Buffer.from("one") }]);
try {
  await small.put([{ payload: Buffer.from("two") }]);
} catch (error) {
  if (!(error instanceof HeadwayError && error.is(ErrorReason.QUEUE_FULL))) {
    throw error;
  }
  console.log("full at", error.metadata.bound, "try again in", error.retryAfterMs, "ms");
}
await client.queues.delete({ queue: small.name });
