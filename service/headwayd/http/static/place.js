// <headway-place queue="QUEUE" message="ID">: a message's place in line, then how far the work is, then how it ended.
// docs/pages.md tells how to use it. What a job says is shown as text, never as HTML.

const HOME = new URL(".", import.meta.url).href; // the service that this file came from
const FIRST_PAUSE_MS = 500, LONGEST_PAUSE_MS = 15000;
const SILENT_MS = 40000; // the service says something every 15 s: after this long nobody is there any more
const ANNOUNCE_MS = 15000; // places are read out no more often
const MOST_SHOWN = 2000; // characters of a result; longer ones are downloaded
const PASSING =
  ["canceled", "unknown", "deadline_exceeded", "resource_exhausted", "aborted", "internal", "unavailable"];
const OF_CALLERS = ["unauthenticated", "permission_denied"]; // once served: a token has run out, and the next may do

const TEXTS = {
  asking: "asking for the place",
  waiting: "you are number {position} of {length}",
  wait: "about {time}",
  soon: "any moment now",
  back: "moved back: others came in ahead",
  delayed: "joins the line at {time}",
  working: "being worked on",
  again: "attempt {attempt}",
  progress: "progress",
  done: "done",
  dead: "failed",
  expired: "not done: it had waited too long",
  withdrawn: "withdrawn",
  deleted: "the queue was deleted",
  unknown: "nothing is known of it",
  download: "download the result",
  lost: "connection lost, trying again",
  refused: "cannot be watched: {cause}",
  seconds: "{n} s",
  minutes: "{n} min",
  hours: "{n} h",
};

const STYLE = new CSSStyleSheet();
STYLE.replaceSync(`
  :host {
    --_accent: var(--headway-accent, #2f7de1);
    --_good: var(--headway-good, #2d8a4e);
    --_bad: var(--headway-bad, #d6453d);
    display: block; font: inherit; line-height: 1.4;
  }
  @supports (color: light-dark(red, red)) {
    :host {
      --_accent: var(--headway-accent, light-dark(#0b5fc4, #74b1ff));
      --_good: var(--headway-good, light-dark(#17713a, #62cb8a));
      --_bad: var(--headway-bad, light-dark(#b3261e, #ff8a80));
    }
  }
  :host([hidden]), [hidden] { display: none !important; }
  [part="label"] { font-weight: 600; }
  [part="status"] { font-variant-numeric: tabular-nums; }
  [part="note"], [part="connection"] { font-size: 0.9em; }
  [part="connection"] { color: var(--_bad); }
  :host([state="done"]) [part="status"] { color: var(--_good); }
  :host(:is([state="dead"], [state="expired"], [state="refused"])) [part="status"] { color: var(--_bad); }
  [part="bar"] { height: var(--headway-bar, 0.5em); margin: 0.35em 0; border-radius: 1em; overflow: hidden;
    background: rgb(127 127 127 / 0.3); }
  [part="fill"] { height: 100%; border-radius: inherit; background: var(--_accent); transition: width 0.3s; }
  .unknown [part="fill"] { width: 30%; animation: along 1.6s ease-in-out infinite alternate; }
  @keyframes along { from { margin-left: 0 } to { margin-left: 70% } }
  [part="result"] { margin: 0.35em 0 0; padding: 0.4em 0.6em; max-height: 12em; overflow: auto; white-space: pre-wrap;
    overflow-wrap: anywhere; border: 1px solid rgb(127 127 127 / 0.4); border-radius: 6px; font-size: 0.9em; }
  [part="download"] { color: var(--_accent); }
  [part="announcement"] { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  @media (prefers-reduced-motion: reduce) {
    [part="fill"] { transition: none; }
    .unknown [part="fill"] { animation: none; width: 100%; opacity: 0.4; }
  }
  @media (forced-colors: active) { [part="bar"] { border: 1px solid } [part="fill"] { background: Highlight } }
`);

class Refused extends Error {} // asking again would not help

const ms = (span) => (span ? parseFloat(span) * 1000 : 0); // "1.500s"
const filled = (text, values) => text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
const bytes = (base64) => Uint8Array.from(atob(base64 ?? ""), (letter) => letter.charCodeAt(0));

function textOf(data) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(data);
    return text.length <= MOST_SHOWN && !/[^\P{Cc}\t\n\r]/u.test(text) ? text : null;
  } catch {
    return null;
  }
}

async function opened(url, kind, body, { token, signal, headers }) {
  const given = typeof token === "function" ? await token() : token;
  const response = await fetch(url, {
    method: "POST",
    headers: { "content-type": kind, ...headers, ...(given && { authorization: `Bearer ${given}` }) },
    body, signal, cache: "no-store",
  });
  if (response.ok) return response;
  const told = await response.json().catch(() => ({}));
  const text = told.message || `${response.status} ${response.statusText}`;
  throw [408, 429].includes(response.status) || response.status >= 500 ? new Error(text) : new Refused(text);
}

async function* parts(response, heard) {
  const reader = response.body.getReader();
  try {
    for (let part; !(part = await reader.read()).done; heard?.()) yield part.value;
  } finally {
    reader.cancel().catch(() => {});
  }
}

// All messages of a line by server-sent events: what came, and the event id.
async function* events(line, signal, heard) {
  const headers = { accept: "text/event-stream", ...(line.lastId && { "last-event-id": line.lastId }) };
  const url = `${line.service}queues/${encodeURIComponent(line.queue)}/events`;
  const body = JSON.stringify({ ids: line.ids });
  const response = await opened(url, "application/json", body, { token: line.token, signal, headers });
  if (response.status === 204) return;
  const decoder = new TextDecoder();
  let rest = "", fields = {};
  for await (const part of parts(response, heard)) {
    const rows = (rest + decoder.decode(part, { stream: true })).split("\n");
    rest = rows.pop();
    for (const row of rows) {
      const at = row.indexOf(": ");
      if (row) fields[row.slice(0, Math.max(at, 0))] = row.slice(at + 2);
      if (row) continue;
      if (fields.id) line.lastId = fields.id;
      if (fields.retry) line.retryMs = Number(fields.retry);
      if (fields.event === "trouble") throw new Error(fields.event);
      if (fields.data) yield JSON.parse(fields.data);
      fields = {};
    }
  }
}

// One attended message by Connect: whoever hangs up withdraws it, so a mere GET must not be able to do this.
async function* attended(line, signal) {
  const order = { queue: line.queue, messages: { ids: line.ids, attended: true } };
  const asked = new TextEncoder().encode(JSON.stringify(order));
  const framed = new Uint8Array(5 + asked.length);
  new DataView(framed.buffer).setUint32(1, asked.length);
  framed.set(asked, 5);
  const headers = { "connect-protocol-version": "1" };
  const url = `${line.service}headway.v1.QueueService/WatchPosition`;
  const response = await opened(url, "application/connect+json", framed, { token: line.token, signal, headers });
  let rest = new Uint8Array(), passing = PASSING;
  for await (const part of parts(response)) {
    const all = new Uint8Array(rest.length + part.length);
    all.set(rest), all.set(part, rest.length), (rest = all);
    while (rest.length >= 5) {
      const size = 5 + new DataView(rest.buffer, rest.byteOffset).getUint32(1);
      if (rest.length < size) break;
      const told = JSON.parse(new TextDecoder().decode(rest.subarray(5, size)));
      if (rest[0] & 2) {
        if (told.error) throw new (passing.includes(told.error.code) ? Error : Refused)(told.error.message);
        return;
      }
      passing = [...PASSING, ...OF_CALLERS];
      yield told;
      rest = rest.subarray(size);
    }
  }
}

// One stream over the places of one queue on this page, since browsers open few connections to a site; an attended
// place has one of its own.
class Line {
  static all = new Set();

  static of({ service, queue, token, attended }) {
    const isSame = (line) => line.service === service && line.queue === queue && line.token === token;
    const known = attended ? null : [...Line.all].find((line) => !line.attended && isSame(line));
    const line = known ?? Object.assign(new Line(), { service, queue, token, attended, places: new Map(), retryMs: 0 });
    Line.all.add(line);
    return line;
  }

  join(place, id) {
    this.places.set(id, (this.places.get(id) ?? new Set()).add(place));
    this.ids = null; // also where it is known: what is told first is for the newcomer
    this.again();
    this.running ??= this.run();
  }

  leave(place, id) {
    this.places.get(id)?.delete(place);
    if (this.places.get(id)?.size === 0) this.places.delete(id);
    if (this.places.size) return;
    Line.all.delete(this);
    this.again();
  }

  again() {
    this.aborter?.abort();
    this.wake?.();
  }

  each(act) {
    for (const places of [...this.places.values()]) for (const place of [...places]) act(place);
  }

  async run() {
    let pauseMs = FIRST_PAUSE_MS;
    while (this.places.size) {
      if (!this.ids) {
        await new Promise((resolve) => setTimeout(resolve)); // those that come together are asked for together
        (this.ids = [...this.places.keys()]), (this.lastId = "");
      }
      const aborter = (this.aborter = new AbortController()), { signal } = aborter;
      let timer;
      const heard = () => {
        clearTimeout(timer);
        timer = setTimeout(() => aborter.abort(), SILENT_MS);
      };
      if (!this.attended) heard();
      try {
        for await (const told of this.attended ? attended(this, signal) : events(this, signal, heard)) {
          pauseMs = FIRST_PAUSE_MS;
          const what = told.position ?? told.leased ?? told.finished;
          for (const place of [...(this.places.get(what?.id) ?? [])]) place.told(told);
        }
      } catch (error) {
        if (error instanceof Refused) this.each((place) => place.refuse(error.message));
      }
      clearTimeout(timer);
      if (!this.ids || !this.places.size) continue;
      this.each((place) => place.lose());
      const wait = Math.max(pauseMs * (0.75 + Math.random() / 2), this.retryMs);
      await new Promise((resolve) => setTimeout((this.wake = resolve), wait));
      pauseMs = Math.min(pauseMs * 2, LONGEST_PAUSE_MS);
      this.retryMs = 0;
    }
  }
}

addEventListener("online", () => Line.all.forEach((line) => line.wake?.()));
// The browser may keep the page to come back to; then, too, whoever attended has left.
addEventListener("pagehide", () => Line.all.forEach((line) => line.attended && line.again()));

export class HeadwayPlace extends HTMLElement {
  static observedAttributes = ["queue", "message", "service", "attended", "label"];
  static texts = {}; // for all places of a page, over those above
  #texts = {};
  #token = null;
  #line = null;
  #watched = {};
  #parts = {};
  #now = { state: "asking" };
  #isLost = false;
  #said = {};
  #ticking = 0;
  #announcing = 0;
  #link = null;

  constructor() {
    super();
    const root = this.attachShadow({ mode: "open" });
    root.adoptedStyleSheets = [STYLE];
    const make = (name, tag = "div", into = root) =>
      (this.#parts[name] = into.appendChild(Object.assign(document.createElement(tag), { part: name, hidden: true })));
    for (const name of ["label", "status", "bar", "note", "connection"]) make(name);
    make("result", "pre").tabIndex = 0;
    make("download", "a");
    make("fill", "div", this.#parts.bar).hidden = false;
    this.#parts.bar.setAttribute("role", "progressbar");
    make("announcement").setAttribute("role", "status"); // read out politely
    this.#parts.announcement.hidden = false;
  }

  get queue() { return this.getAttribute("queue") ?? ""; }
  set queue(name) { this.setAttribute("queue", name); }
  get message() { return this.getAttribute("message") ?? ""; }
  set message(id) { this.setAttribute("message", id); }
  get attended() { return this.hasAttribute("attended"); }
  set attended(yes) { this.toggleAttribute("attended", yes); }
  get service() {
    const given = this.getAttribute("service");
    return given ? new URL(given.replace(/\/?$/, "/"), document.baseURI).href : HOME;
  }
  get state() { return this.#now.state; }
  get token() { return this.#token; } // a text, or a function that gives one or a promise of one
  set token(token) { (this.#token = token), this.attributeChangedCallback("token"); }
  get texts() { return { ...TEXTS, ...HeadwayPlace.texts, ...this.#texts }; }
  set texts(texts) { (this.#texts = texts), this.#show(); }

  connectedCallback() {
    for (const name of ["queue", "message", "attended", "token", "texts"])
      if (Object.hasOwn(this, name)) { // set before this file was there
        const given = this[name];
        delete this[name];
        this[name] = given;
      }
    this.attributeChangedCallback("queue");
  }

  disconnectedCallback() {
    queueMicrotask(() => this.isConnected || (this.#leave(), (this.#watched = {}))); // not if it was only moved
  }

  attributeChangedCallback(name) {
    if (name !== "label") queueMicrotask(() => this.#join()); // once all that is changed together has been
    if (this.isConnected) this.#show();
  }

  #leave() {
    this.#line?.leave(this, this.#watched.message);
    this.#line = null;
    clearInterval(this.#ticking), clearTimeout(this.#announcing);
    this.#ticking = this.#announcing = 0;
  }

  #join() {
    const { service, queue, message, attended, token } = this;
    const wanted = { service, queue, message, attended, token };
    if (!this.isConnected || Object.keys(wanted).every((name) => this.#watched[name] === wanted[name])) return;
    this.#leave();
    this.#watched = wanted;
    this.#now = { state: "asking" };
    this.#isLost = false;
    if (queue && message) (this.#line = Line.of(wanted)).join(this, message);
    this.#show();
  }

  told({ position, leased, finished }) {
    this.#isLost = false;
    if (position) {
      const isWaiting = position.state === "STATE_WAITING";
      const now = { state: isWaiting ? "waiting" : "delayed", at: performance.now(), dueAt: position.availableAt };
      now.position = Number(position.position ?? 0);
      now.length = Number(position.length ?? 0);
      now.isBack = Boolean(position.movedBack);
      now.etaMs = position.eta?.known ? ms(position.eta.p50) : null;
      now.etaMostMs = position.eta?.known ? ms(position.eta.p90) : null;
      this.#become(now, "position");
    } else if (leased) {
      const fraction = leased.progress ? leased.progress.fraction ?? 0 : null;
      const note = leased.progress?.note ?? "";
      this.#become({ state: "working", attempt: leased.attempt ?? 1, fraction, note }, "progress");
    } else if (finished) {
      const outcome = (finished.outcome ?? "OUTCOME_UNSPECIFIED").slice("OUTCOME_".length);
      const state = outcome === "UNSPECIFIED" ? "unknown" : outcome.toLowerCase();
      this.#leave();
      this.#become({ state, outcome, result: bytes(finished.result), cause: finished.cause ?? "" }, "finished");
    }
  }

  lose() { (this.#isLost = true), this.#show(); }

  refuse(cause) {
    this.#leave();
    this.#isLost = false;
    this.#now = { state: "refused", cause };
    this.#show();
  }

  #become(now, event) {
    this.#now = now;
    this.#show();
    const detail = { ...now, message: this.message };
    this.dispatchEvent(new CustomEvent(event, { detail, bubbles: true, composed: true }));
  }

  // While the position stays, so much of the wait is still to come, however long ago it was told.
  #leftMs() {
    const { etaMs, at, position } = this.#now;
    return Math.max(etaMs - (performance.now() - at), (etaMs * (position - 1)) / position);
  }

  #time(spanMs) {
    const s = spanMs / 1000, texts = this.texts;
    if (s <= 10) return filled(texts.seconds, { n: Math.ceil(s) });
    if (s <= 55) return filled(texts.seconds, { n: Math.ceil(s / 5) * 5 });
    if (s <= 5400) return filled(texts.minutes, { n: Math.ceil(s / 60) });
    return filled(texts.hours, { n: Math.ceil(s / 3600) });
  }

  // The time of day, and the date unless that is today.
  #due() {
    const due = new Date(this.#now.dueAt), isToday = due.toDateString() === new Date().toDateString();
    return isToday ? due.toLocaleTimeString() : due.toLocaleString();
  }

  #status() {
    const now = this.#now, texts = this.texts, local = (number) => number.toLocaleString();
    if (now.state === "delayed") return filled(texts.delayed, { time: this.#due() });
    if (now.state !== "waiting") return filled(texts[now.state] ?? now.state, now);
    const place = filled(texts.waiting, { position: local(now.position), length: local(now.length) });
    if (now.etaMs === null || this.#isLost) return place;
    const leftMs = this.#leftMs();
    return `${place}, ${leftMs < 500 ? texts.soon : filled(texts.wait, { time: this.#time(leftMs) })}`;
  }

  #show() {
    const now = this.#now, texts = this.texts, isWorking = now.state === "working";
    const put = (name, text) => {
      const part = this.#parts[name];
      if (part.textContent !== text) part.textContent = text;
      part.hidden = !text;
    };
    if (this.isConnected) this.setAttribute("state", now.state), this.toggleAttribute("lost", this.#isLost);
    put("label", this.getAttribute("label") ?? "");
    put("status", this.#status());
    put("connection", this.#isLost ? texts.lost : "");
    const again = isWorking && now.attempt > 1 ? filled(texts.again, now) : "";
    const cause = now.state === "refused" ? "" : now.cause;
    put("note", (isWorking ? [now.note, again].filter(Boolean).join(" · ") : now.isBack ? texts.back : cause) || "");
    this.#showBar(isWorking);
    this.#showResult(now.state === "done" && now.result.length ? now.result : null);
    const counts = now.state === "waiting" && now.etaMs !== null && !this.#isLost && this.isConnected;
    if (counts && !this.#ticking) this.#ticking = setInterval(() => put("status", this.#status()), 1000);
    if (!counts) this.#ticking = clearInterval(this.#ticking) ?? 0;
    this.#announce();
  }

  #showBar(isWorking) {
    const { bar, fill } = this.#parts, { fraction } = this.#now;
    bar.hidden = !isWorking;
    bar.classList.toggle("unknown", isWorking && fraction === null);
    bar.setAttribute("aria-label", [this.getAttribute("label"), this.texts.progress].filter(Boolean).join(": "));
    if (!isWorking || fraction === null) {
      bar.removeAttribute("aria-valuenow");
      fill.style.width = "";
      return;
    }
    bar.setAttribute("aria-valuenow", Math.round(fraction * 100));
    fill.style.width = `${fraction * 100}%`;
  }

  #showResult(data) {
    const { result, download } = this.#parts, text = data && textOf(data);
    result.hidden = !text;
    result.textContent = text ?? "";
    download.hidden = !data || text !== null;
    if (this.#link && (!data || text !== null)) this.#link = URL.revokeObjectURL(this.#link) ?? null;
    if (download.hidden || this.#link) return;
    this.#link = URL.createObjectURL(new Blob([data]));
    Object.assign(download, { href: this.#link, textContent: this.texts.download });
    download.download = this.message.replace(/[^\w.-]+/g, "_") || "result";
  }

  // Reads out what matters: a new state at once, steps forward and progress now and then, never each second.
  #announce() {
    const now = this.#now, part = now.fraction == null ? "" : ` ${Math.floor(now.fraction * 4) * 25} %`;
    const back = now.isBack ? `, ${this.texts.back}` : "";
    const text = this.#isLost ? this.texts.lost : this.#status() + part + back;
    const state = this.#isLost ? "lost" : now.state, news = `${state}${part} ${now.position} ${now.isBack}`;
    clearTimeout(this.#announcing);
    if (news === this.#said.news) return;
    const waitMs = state === this.#said.state ? this.#said.at + ANNOUNCE_MS - performance.now() : 0;
    if (waitMs > 0) return void (this.#announcing = setTimeout(() => this.#announce(), waitMs));
    this.#said = { news, state, at: performance.now() };
    if (now.state !== "asking") this.#parts.announcement.textContent = text;
  }
}

customElements.define("headway-place", HeadwayPlace);
