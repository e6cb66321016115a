// The one stream of a page: server-sent events read by fetch, because it can send an Authorization header. Lost, it is
// opened again, sooner at first, every five seconds later.

import { authorization } from "./calls.js";

const SILENT_MS = 40_000; // the service says something every fifteen seconds
const PAUSES_MS = [300, 1000, 2000, 5000];

export class Stream {
  // `hear(event, data)` gets what comes; `state(name, refusal)` is told "live", "lost" or "refused" (then it has ended).
  constructor(query, hear, state) {
    this.query = query;
    this.hear = hear;
    this.state = state;
    this.closed = false;
    this.run();
  }

  close() {
    this.closed = true;
    this.control?.abort();
  }

  async run() {
    let failures = 0;
    while (!this.closed) {
      try {
        if (!(await this.read(() => { failures = 0; }))) return;
      } catch { /* the connection is gone: told below */ }
      if (this.closed) return;
      this.state("lost");
      const pause = PAUSES_MS[Math.min(failures++, PAUSES_MS.length - 1)];
      await new Promise(resolve => { setTimeout(resolve, pause); });
    }
  }

  // Until it ends. Whether it is worth another try.
  async read(begun) {
    const control = this.control = new AbortController();
    const soon = promise => {
      const timer = setTimeout(() => control.abort(), SILENT_MS);
      return promise.finally(() => clearTimeout(timer));
    };
    const response = await soon(fetch(`events?${new URLSearchParams(this.query)}`, {
      headers: authorization(), signal: control.signal, cache: "no-store",
    }));
    if (!response.ok) {
      const refusal = await soon(response.json()).catch(() => ({ code: 14, text: response.statusText }));
      if (![400, 401, 403].includes(response.status)) return true;
      if (!this.closed) this.state("refused", refusal);
      return false;
    }
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    while (true) {
      const { value, done } = await soon(reader.read());
      if (done || this.closed) return true;
      begun();
      this.state("live");
      const events = (rest + value).split("\n\n");
      rest = events.pop();
      for (const event of events) this.take(event);
    }
  }

  take(text) {
    let name = "message";
    let data = "";
    for (const line of text.split("\n")) {
      if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("data: ")) data += line.slice(6);
    }
    if (data && !this.closed) this.hear(name, JSON.parse(data));
  }
}
