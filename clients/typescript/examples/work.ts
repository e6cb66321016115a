import { connect } from "@headway/client";

await using client = connect();
const numbers = client.queue("typescript-numbers");
await client.queues.create({ queue: numbers.name });
await numbers.put(["1", "2", "3"].map((text) => ({ payload: Buffer.from(text) })));
await client.queues.close({ queue: numbers.name }); // so that the worker ends by itself

const stop = new AbortController();
process.once("SIGTERM", () => stop.abort()); // what is being worked on is finished

let sum = 0;
await numbers.work(
  async (lease) => {
    sum += Number(Buffer.from(lease.message.payload));
    return Buffer.from(`${sum}`); // the message's result
  },
  { concurrency: 2, stop: stop.signal },
);
console.log("sum", sum);
await client.queues.delete({ queue: numbers.name });
