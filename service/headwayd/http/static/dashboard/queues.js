// All queues, live: a row for each, sorted by what one looks for.

import { arrange, empty, h, say, set, table } from "./dom.js";
import { age, count, eta, instant, now, number, rate, seconds } from "./format.js";
import { series } from "./history.js";
import { bar, highest, spark } from "./spark.js";

const SPAN_S = 90;
const STEPS = 45;
const SORT_MS = 2000; // rows do not jump about more often

// Title, class, and what to sort by.
const COLUMNS = [
  ["Queue", "", row => row.name],
  ["Length", "n", row => number(row.counts.length)],
  ["Slots", "n", row => number(row.counts.leased)],
  ["Delayed", "n", row => number(row.counts.delayed)],
  ["Dead", "n", row => number(row.counts.dead)],
  ["Put/s", "n wide", row => number(row.counts.putRate)],
  ["Acked/s", "n wide", row => number(row.counts.ackRate)],
  ["Oldest", "n", row => seconds(row.counts.oldestAge) ?? -1],
  ["New wait", "n", row => (row.eta?.known ? seconds(row.eta.p50) : -1)],
  ["Consumers", "n", row => number(row.counts.consumersWaiting)],
];

class Row {
  constructor(name) {
    this.name = name;
    this.counts = {};
    this.cells = COLUMNS.map(([, kind], i) => h(i ? "td" : "th", { class: kind, scope: i ? null : "row" }));
    this.badges = h("span", { class: "badges" });
    this.cells[0].append(h("a", { href: `#/queues/${encodeURIComponent(name)}`, class: "name" }, name), this.badges);
    this.texts = this.cells.map(() => h("span"));
    this.slots = bar("slots");
    this.sparks = [spark(80, 20, "put"), spark(80, 20, "ack")];
    this.cells[5].append(this.sparks[0].picture);
    this.cells[6].append(this.sparks[1].picture);
    this.cells.slice(1).forEach((cell, i) => cell.append(this.texts[i + 1]));
    this.cells[2].append(this.slots.picture);
    this.element = h("tr", { "data-queue": name }, this.cells);
  }

  take({ queue, eta: estimate, asOf }) {
    // Without asOf it is of List: nothing else is known then, nor from when what was known before would count.
    Object.assign(this, { counts: queue.counts ?? {}, policy: queue.policy ?? {}, queue });
    Object.assign(this, { eta: estimate, asOf: asOf && instant(asOf) });
  }

  paint() {
    const { counts, policy, texts, queue } = this;
    const limit = number(policy.limit);
    const bound = number(policy.bound);
    const states = [queue.paused && "paused", queue.closed && "closed", bound && number(counts.length) >= bound && "full"];
    badges(this.badges, states);
    say(texts[1], bound ? `${count(counts.length)} / ${count(bound)}` : count(counts.length));
    say(texts[2], limit ? `${count(counts.leased)} / ${count(limit)}` : count(counts.leased));
    set(this.slots.picture, "class", limit ? "meter slots" : "meter slots none");
    this.slots.draw(limit ? number(counts.leased) / limit : 0);
    say(texts[3], count(counts.delayed));
    say(texts[4], count(counts.dead));
    set(this.cells[4], "class", number(counts.dead) ? "n alarming" : "n");
    say(texts[5], rate(counts.putRate));
    say(texts[6], rate(counts.ackRate));
    const expected = eta(this.eta);
    say(texts[8], expected.text);
    set(this.cells[8], "title", expected.title);
    const blocked = number(counts.producersWaiting);
    set(this.cells[9], "title", "Consumers that wait for a message, and producers blocked for want of room");
    say(texts[9], count(counts.consumersWaiting) + (blocked ? ` · ${count(blocked)} blocked` : ""));
    [3, 4, 5, 6, 9].forEach(i => set(texts[i], "class", texts[i].textContent === "0" ? "none" : null));
    this.paintAge();
  }

  paintAge() {
    const oldest = seconds(this.counts.oldestAge);
    say(this.texts[7], oldest === null ? "–" : age(oldest + (this.asOf ? Math.max(0, now() - this.asOf) : 0)));
  }

  paintSparks() {
    ["put", "ack"].forEach((field, i) => {
      const values = series(this.name, field, SPAN_S, STEPS);
      this.sparks[i].draw(values, highest(values));
    });
  }
}

export function badges(holder, states) {
  const shown = states.filter(Boolean);
  if (holder.textContent === shown.join("")) return;
  holder.replaceChildren(...shown.map(state => h("span", { class: `badge ${state}` }, state)));
}

export function queuesView(reopen) {
  const rows = new Map();
  const waiting = new Map(); // what came before the list that names it
  let listed = null;
  let refusal = "";
  let prefix = "";
  const pages = [""]; // the tokens of this page and those before
  let sort = { column: 0, isDown: false };
  let sortedAt = 0;
  let isPlanned = false;
  let timer = null;

  const shown = table("All queues", COLUMNS.map(([title, kind]) => [title, kind]));
  const heads = [...shown.whole.querySelectorAll("thead th")];
  heads.forEach((head, i) => {
    const button = h("button", { type: "button", onclick: () => order(i) }, head.textContent);
    head.replaceChildren(button);
  });
  const filter = h("input", {
    type: "search", id: "filter", placeholder: "Begins with…", autocomplete: "off", spellcheck: "false", maxlength: "200",
    oninput: () => {
      clearTimeout(timer);
      timer = setTimeout(() => look(filter.value, [""]), 250);
    },
  });
  const sums = h("dl", { class: "sums" });
  const sumOf = Object.fromEntries(["Queues", "Length", "Leased", "Delayed", "Dead", "Put/s", "Acked/s"].map(title => {
    const value = h("dd", {}, "–");
    sums.append(h("div", {}, h("dt", {}, title), value));
    return [title, value];
  }));
  const none = h("div", { hidden: true });
  const back = h("button", { type: "button", class: "quiet", onclick: () => look(prefix, pages.slice(0, -1)) }, "Back");
  const more = h("button", { type: "button", class: "quiet", onclick: () => look(prefix, [...pages, listed.next]) }, "More queues");
  const note = h("p", {});
  const pager = h("div", { class: "pager", hidden: true }, note, back, more);
  const element = h("div", {},
    h("div", { class: "head" }, h("h1", { tabindex: "-1" }, "Queues"),
      h("div", { class: "filter" }, h("label", { for: "filter" }, "Filter by name"), filter)),
    sums, h("div", { class: "card queues" }, shown.whole, none), pager);

  function look(begin, tokens) {
    prefix = begin;
    refusal = "";
    pages.splice(0, pages.length, ...tokens);
    waiting.clear();
    reopen(); // what is shown stays until the others are here
  }

  function order(column) {
    sort = { column, isDown: sort.column === column ? !sort.isDown : column > 0 };
    sortedAt = 0;
    paint();
  }

  function sorted() {
    const value = COLUMNS[sort.column][2];
    const sign = sort.isDown ? -1 : 1;
    const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    return [...rows.values()].sort((a, b) => sign * compare(value(a), value(b)) || compare(a.name, b.name));
  }

  function plan() {
    if (isPlanned) return;
    isPlanned = true;
    requestAnimationFrame(() => {
      isPlanned = false;
      paint();
    });
  }

  function paint() {
    const list = [...rows.values()].filter(row => row.queue);
    list.forEach(row => row.paint());
    const isHeld = shown.body.contains(document.activeElement); // who walks the rows must not lose them
    if (shown.body.childElementCount !== rows.size || (Date.now() > sortedAt + SORT_MS && !isHeld)) {
      arrange(shown.body, sorted().map(row => row.element));
      sortedAt = Date.now();
    }
    heads.forEach((head, i) => set(head, "aria-sort", i === sort.column ? (sort.isDown ? "descending" : "ascending") : null));
    paintSums(list);
    set(shown.whole, "hidden", rows.size === 0);
    set(none, "hidden", rows.size > 0);
    if (!rows.size) paintNone();
    const isPart = Boolean(listed?.next) || pages.length > 1;
    set(pager, "hidden", !isPart);
    set(back, "disabled", pages.length < 2);
    set(more, "disabled", !listed?.next);
    if (isPart) say(note, `${count(rows.size)} queues in the order of their names, at most ${listed?.most ?? 100} at a time: sorting and sums are of these. Filter to see others.`);
  }

  function paintSums(list) {
    const sum = field => list.reduce((all, row) => all + number(row.counts[field]), 0);
    say(sumOf.Queues, listed ? count(rows.size) + (listed.next ? "+" : "") : "–");
    say(sumOf.Length, count(sum("length")));
    say(sumOf.Leased, count(sum("leased")));
    say(sumOf.Delayed, count(sum("delayed")));
    say(sumOf.Dead, count(sum("dead")));
    say(sumOf["Put/s"], rate(sum("putRate")));
    say(sumOf["Acked/s"], rate(sum("ackRate")));
  }

  function paintNone() {
    const kind = refusal ? `refused ${prefix}` : !listed ? "wait" : prefix ? `filter ${prefix}` : "none";
    if (none.dataset.kind === kind) return;
    none.dataset.kind = kind;
    none.replaceChildren(refusal ? empty(`You may not see all queues${prefix && ` that begin with “${prefix}”`}`, `${refusal}.`,
      "Type into the filter how the names begin that you may see.")
      : !listed ? empty("Looking for queues…")
      : prefix ? empty("No queue’s name begins like this", `There is none that begins with “${prefix}”.`)
        : empty("No queues yet", "As soon as somebody creates one it appears here by itself.", h("code", {}, "headway create mail")));
  }

  return {
    element, title: "Queues", trail: [["Queues", "#/"]],
    query: () => ({ prefix, after: pages.at(-1) }),
    hear(event, data) {
      if (event === "queues") {
        listed = data;
        const names = new Set(data.names);
        for (const name of rows.keys()) if (!names.has(name)) rows.delete(name);
        for (const name of names) if (!rows.has(name)) rows.set(name, new Row(name));
        for (const [name, early] of waiting) rows.get(name)?.take(early);
        waiting.clear();
      } else if (event === "queue") {
        const row = rows.get(data.queue.name);
        if (row) row.take(data);
        else waiting.set(data.queue.name, data);
      }
      plan();
    },
    refuse(text) {
      refusal = text;
      listed = null;
      rows.clear();
      plan();
    },
    tick() {
      for (const row of rows.values()) {
        row.paintAge();
        row.paintSparks();
      }
      plan();
    },
  };
}
