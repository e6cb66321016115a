import { connect } from "@headway/client";
import { Outcome } from "@headway/client/v1";

await using client = connect();
const pictures = client.queue("typescript-pictures");
await client.queues.create({ queue: pictures.name });
await pictures.put([{ payload: Buffer.from("<svg/>"), id: "logo" }]);

const stop = new AbortController();
let working: Promise<void> | undefined;
for await (const { event } of pictures.watch(["logo"])) {
  if (event.case === "position") {
    console.log("position", event.value.position);
    working ??= pictures.work(async () => Buffer.from("done"), { stop: stop.signal });
  } else if (event.case === "finished") {
    console.log(Outcome[event.value.outcome], Buffer.from(event.value.result).toString());
  }
}
stop.abort();
await working;
await client.queues.delete({ queue: pictures.name });
