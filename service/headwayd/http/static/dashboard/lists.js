// The lists of one queue: who waits, who works on what, and the dead.

import { arrange, empty, h, say, set, table } from "./dom.js";
import { count, instant, now, number, since, age, span } from "./format.js";
import { bar } from "./spark.js";

const MOST = 50; // as many of each list as the service tells
const path = (queue, id) => `#/queues/${encodeURIComponent(queue)}/messages/${encodeURIComponent(id)}`;

// One list: its columns are [title, class, (item) => text], the first one being the message's id.
class List {
  constructor(queue, title, columns, { none, rowAction }) {
    this.queue = queue;
    this.columns = columns;
    this.rowAction = rowAction;
    this.rows = new Map();
    this.items = [];
    const titles = [["Message", ""], ...columns];
    if (rowAction) titles.push(["", "act"]);
    this.table = table(title, titles);
    if (rowAction) this.table.whole.querySelector("thead th:last-child").append(h("span", { class: "unseen" }, "Action"));
    this.count = h("span", { class: "badge" });
    this.note = h("p", { class: "note", hidden: true });
    this.none = empty(...none);
    this.tools = h("div", { class: "tools" });
    this.element = h("div", { class: "card list" },
      h("div", { class: "list-head" }, h("h2", {}, title), this.count, this.tools), this.note, this.table.whole, this.none);
  }

  show(items, all) {
    this.items = items;
    const keys = new Set(items.map(item => item.key));
    for (const key of this.rows.keys()) if (!keys.has(key)) this.rows.delete(key);
    arrange(this.table.body, items.map(item => this.row(item)));
    set(this.table.whole, "hidden", items.length === 0);
    set(this.none, "hidden", items.length > 0);
    set(this.note, "hidden", true);
    this.total(all);
    this.tick();
  }

  total(all) {
    const shown = this.items.length;
    say(this.count, shown >= MOST && all > shown ? `first ${count(shown)} of ${count(all)}` : count(shown));
  }

  // The caller may not see it, or it cannot be told now.
  refuse(text) {
    set(this.table.whole, "hidden", true);
    set(this.none, "hidden", true);
    set(this.note, "hidden", false);
    say(this.count, "");
    say(this.note, text);
  }

  row(item) {
    let row = this.rows.get(item.key);
    if (!row) {
      const id = h("th", { scope: "row" }, h("a", { href: path(this.queue, item.id), class: "id" }, item.id));
      const cells = this.columns.map(([, kind]) => h("td", { class: kind }));
      const act = this.rowAction ? [h("td", { class: "act" }, this.rowAction(item))] : [];
      row = { cells, element: h("tr", {}, id, cells, act) };
      this.rows.set(item.key, row);
    }
    row.item = item;
    return row.element;
  }

  tick() {
    for (const { cells, item } of this.rows.values()) {
      this.columns.forEach(([, , text], i) => {
        const content = text(item, cells[i]);
        if (typeof content === "string") say(cells[i], content);
      });
    }
  }

  setActs(may) {
    set(this.element, "data-acts", may ? "yes" : "no");
  }
}

export function waitingList(queue) {
  const list = new List(queue, "In line", [
    ["Place", "n", item => count(item.position)],
    ["Waits for", "n", item => age(since(item.putAt))],
    ["Failures", "n", item => (number(item.failures) ? count(item.failures) : "–")],
    ["Last error", "text", item => item.lastError ?? ""],
  ], { none: ["Nobody waits", "Every message that was put has been taken."] });
  list.take = (answer, counts) => list.show((answer.messages ?? []).map(each => (
    { ...each, id: each.message.id, key: `${each.ticket} ${each.message.id}` })), number(counts.length));
  return list;
}

function progress(item, cell) {
  const fraction = number(item.progress?.fraction);
  if (!item.progress) return "–";
  if (!cell.bar) {
    cell.bar = bar("progress");
    cell.note = h("span");
    cell.replaceChildren(cell.bar.picture, cell.note);
  }
  cell.bar.draw(fraction);
  say(cell.note, `${Math.round(fraction * 100)} % ${item.progress.note ?? ""}`.trim());
  return null;
}

export function leasedList(queue) {
  const list = new List(queue, "Being worked on", [
    ["By", "", item => item.consumer || "–"],
    ["Attempt", "n", item => count(item.attempt)],
    ["For", "n", item => age(since(item.leasedAt))],
    ["Lease left", "n", item => left(item.leaseExpiresAt)],
    ["Progress", "text", progress],
  ], { none: ["Nobody works", "No message is leased now."] });
  list.take = (answer, counts) => list.show((answer.messages ?? []).map(each => (
    { ...each, key: `${each.ticket} ${each.leasedAt}` })), number(counts.leased));
  return list;
}

function left(expiresAt) {
  const rest = instant(expiresAt) - now();
  return rest > 0 ? span(Math.ceil(rest)) : "over";
}

export function deadList(queue, redrive) {
  const list = new List(queue, "Dead", [
    ["Why", "", item => (item.cause === "expired" ? "expired" : "attempts used up")],
    ["Failures", "n", item => count(item.failures)],
    ["Died", "n", item => `${age(since(item.diedAt))} ago`],
    ["Put back", "n", item => (number(item.replays) ? `${count(item.replays)} ×` : "–")],
    ["Last error", "text", item => item.lastError ?? ""],
  ], {
    none: ["None is dead", "What uses up its attempts is kept here, to be looked at and put back."],
    rowAction: item => h("button", {
      type: "button", class: "quiet", onclick: event => redrive([item.id], event.currentTarget),
    }, "Put back", h("span", { class: "unseen" }, ` ${item.id}`)),
  });
  const all = h("button", { type: "button", class: "quiet", onclick: event => redrive([], event.currentTarget) }, "Put all back");
  list.tools.append(all);
  list.take = (answer, counts) => {
    const messages = answer.messages ?? [];
    list.show(messages.map(each => ({ ...each, id: each.message.id, key: `${each.diedAt} ${each.message.id}` })), number(counts.dead));
    set(all, "hidden", messages.length === 0);
  };
  return list;
}
