import { createConnectTransport } from "@connectrpc/connect-web";
import { Client } from "@headway/client";

const client = new Client(createConnectTransport({ baseUrl: location.origin, useBinaryFormat: true }));
const pictures = client.queue("browser-pictures");
const place = document.body.appendChild(document.createElement("output"));

const [put] = await pictures.put([{ payload: new TextEncoder().encode("<svg/>") }]);
for await (const { event } of pictures.watch([put?.id ?? ""], { attended: true })) {
  if (event.case === "position") {
    place.textContent = `number ${event.value.position} of ${event.value.length}`;
  } else if (event.case === "leased") {
    place.textContent = `${Math.round((event.value.progress?.fraction ?? 0) * 100)} %`;
  } else if (event.case === "finished") {
    place.textContent = new TextDecoder().decode(event.value.result);
  }
}
