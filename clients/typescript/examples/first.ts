import { connect } from "@headway/client";

await using client = connect(); // HEADWAY_ADDRESS, else 127.0.0.1:7420
const mail = client.queue("typescript-mail");
await client.queues.create({ queue: mail.name, policy: { bound: 1000 } });

const payload = new TextEncoder().encode("Hello, Ada");
const [put] = await mail.put([{ payload, id: "ada" }], { waitMs: 5_000 });
console.log("position", put?.position);

await mail.withLease(
  async (lease) => {
    console.log(new TextDecoder().decode(lease.message.payload)); // acked when this function returns
  },
  { waitMs: 5_000 },
);
await client.queues.delete({ queue: mail.name });
