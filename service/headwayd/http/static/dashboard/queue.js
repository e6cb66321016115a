// One queue in depth: its numbers now and over the last minutes, who waits, who works on what, the dead; and what an
// operator may do to it.

import { call, stream } from "./calls.js";
import { confirmPurge, tell } from "./dialogs.js";
import { h, say, set } from "./dom.js";
import { age, count, eta, instant, now, number, rate, seconds, span } from "./format.js";
import { series } from "./history.js";
import { deadList, leasedList, waitingList } from "./lists.js";
import { badges } from "./queues.js";
import { highest, spark } from "./spark.js";

const SPAN_S = 300;
const STEPS = 100;
const NOT_FOUND = 5;
const TILES = ["Length", "Slots", "Delayed", "Dead", "Oldest", "New wait", "Consumers", "Producers"];

function tiles() {
  const made = {};
  const element = h("dl", { class: "tiles" }, TILES.map(title => {
    const value = h("dd", {}, "–");
    const note = h("dd", { class: "note" });
    made[title] = { value, note };
    return h("div", { class: "card tile" }, h("dt", {}, title), value, note);
  }));
  return { element, put: (title, text, note = "") => { say(made[title].value, text); say(made[title].note, note); } };
}

// A picture of the last minutes, with its words beside it for those who do not see it.
function chart(title, lines) {
  const pictures = lines.map(([field, text]) => ({ field, text, ...spark(600, 120, field) }));
  const top = h("span", { class: "top" });
  const legend = pictures.map(each => Object.assign(each, { now: h("strong") })).map(each => (
    h("span", { class: `key ${each.field}` }, h("span", { class: "swatch", "aria-hidden": "true" }), `${each.text} `, each.now)));
  const element = h("figure", { class: "card chart" },
    h("figcaption", {}, h("h2", {}, title), h("span", { class: "legend" }, legend)),
    h("div", { class: "plot" }, top, pictures.map(each => each.picture)),
    h("div", { class: "axis", "aria-hidden": "true" }, h("span", {}, "5 min ago"), h("span", {}, "now")));
  return {
    element,
    draw(name, shown) {
      const values = pictures.map(each => series(name, each.field, SPAN_S, STEPS));
      const most = highest(...values);
      say(top, most > 0 ? (pictures[0].field === "length" ? count(most) : `${rate(most)}/s`) : "");
      pictures.forEach((each, i) => {
        each.draw(values[i], most);
        say(each.now, shown[each.field]);
      });
    },
  };
}

export function queueView(name, about) {
  let queue = null;
  let counts = {};
  let isAdmin = false;
  const states = h("span", { class: "badges" });
  const policy = h("dl", { class: "policy" });
  const gone = h("p", { class: "card warn", hidden: true });
  const boxes = tiles();
  const through = chart("Through", [["put", "put/s"], ["ack", "acked/s"]]);
  const long = chart("Length", [["length", "waiting"]]);
  const lists = { waiting: waitingList(name), leased: leasedList(name), dead: deadList(name, redrive) };
  const pause = h("button", { type: "button", class: "quiet", onclick: () => act(pauseOrResume, pause) }, "Pause");
  const purge = h("button", { type: "button", class: "danger", onclick: askToPurge }, "Purge…");
  const acts = h("div", { class: "buttons", hidden: true }, pause, purge);
  const readOnly = h("p", { class: "note read-only", hidden: true });
  const id = h("input", { type: "text", id: "follow", autocomplete: "off", spellcheck: "false", maxlength: "200" });
  const follow = h("form", {
    class: "filter", onsubmit: event => {
      event.preventDefault();
      if (id.value) location.hash = `#/queues/${encodeURIComponent(name)}/messages/${encodeURIComponent(id.value)}`;
    },
  }, h("label", { for: "follow" }, "Follow a message by its id"), id, h("button", { class: "quiet" }, "Follow"));
  const element = h("div", {},
    h("div", { class: "head" }, h("h1", { tabindex: "-1" }, h("span", { class: "name" }, name), states), readOnly, acts),
    gone, boxes.element, h("div", { class: "charts" }, through.element, long.element),
    lists.leased.element, lists.waiting.element, lists.dead.element,
    h("div", { class: "foot" }, follow, h("details", { class: "card" }, h("summary", {}, "Policy and totals"), policy)));

  function mayAct() {
    const may = about.actions && isAdmin && queue !== null;
    set(acts, "hidden", !may);
    set(readOnly, "hidden", may || queue === null);
    say(readOnly, about.guarded ? "Read only: actions need the admin role" : "Read only");
    lists.dead.setActs(may);
  }

  function paint() {
    const limit = number(queue.policy?.limit);
    const bound = number(queue.policy?.bound);
    const length = number(counts.length);
    badges(states, [queue.paused && "paused", queue.closed && "closed", bound && length >= bound && "full"]);
    boxes.put("Length", count(length), bound ? `of ${count(bound)}` : "no bound");
    boxes.put("Slots", limit ? `${count(counts.leased)} / ${count(limit)}` : count(counts.leased), limit ? "leased / limit" : "leased, no limit");
    boxes.put("Delayed", count(counts.delayed), "join the line later");
    boxes.put("Dead", count(counts.dead), number(counts.dead) ? "to be looked at" : "");
    const expected = eta(queue.eta);
    boxes.put("New wait", expected.text, expected.late ? `nine of ten within ${expected.late}` : "no basis for an estimate");
    boxes.put("Consumers", count(counts.consumersWaiting), "wait for a message");
    boxes.put("Producers", count(counts.producersWaiting), "blocked, no room");
    say(pause, queue.paused ? "Resume" : "Pause");
    paintPolicy();
    mayAct();
    paintTime();
  }

  function paintTime() {
    const oldest = seconds(counts.oldestAge);
    boxes.put("Oldest", oldest === null ? "–" : age(oldest + Math.max(0, now() - queue.at)), "at the head");
    const shown = { put: rate(counts.putRate), ack: rate(counts.ackRate), length: count(counts.length) };
    through.draw(name, shown);
    long.draw(name, shown);
  }

  function paintPolicy() {
    const { policy: its = {}, createdAt, durability } = queue;
    const rows = [
      ["Bound", number(its.bound) ? count(its.bound) : "none"], ["Limit", number(its.limit) ? count(its.limit) : "none"],
      ["Lease", span(seconds(its.lease))], ["Attempts", number(its.retry?.maxAttempts) ? count(its.retry.maxAttempts) : "no limit"],
      ["Backoff", `${span(seconds(its.retry?.minBackoff))} to ${span(seconds(its.retry?.maxBackoff))}`],
      ["Time to live", its.timeToLive ? span(seconds(its.timeToLive)) : "none"], ["Durability", durability ?? "–"],
      ["Accepted", count(counts.accepted)], ["Acked", count(counts.acked)], ["Expired", count(counts.expired)],
      ["Withdrawn", count(counts.withdrawn)], ["Taken by others", count(counts.takenByForeign)],
      ["Created", createdAt ? new Date(createdAt).toLocaleString() : "–"],
    ];
    const text = JSON.stringify(rows);
    if (policy.dataset.shown === text) return;
    policy.dataset.shown = text;
    policy.replaceChildren(...rows.map(([title, value]) => h("div", {}, h("dt", {}, title), h("dd", {}, value))));
  }

  async function act(what, button) {
    set(button, "disabled", true);
    try {
      tell(await what());
    } catch (error) {
      tell(`Refused: ${error.message}`, "ill");
    } finally {
      set(button, "disabled", false);
    }
  }

  async function pauseOrResume() {
    const isPaused = Boolean(queue.paused);
    await call(isPaused ? "Resume" : "Pause", { queue: name });
    return isPaused ? "Resumed: messages are handed out again" : "Paused: no message is handed out";
  }

  async function askToPurge() {
    const asked = await confirmPurge(name);
    if (!asked) return;
    await act(async () => {
      const { waiting, delayed, dead } = await call("Purge", { queue: name, dead: asked.dead });
      return `Purged: ${count(waiting)} waiting, ${count(delayed)} delayed, ${count(dead)} dead`;
    }, purge);
  }

  function redrive(messageIds, button) {
    return act(async () => {
      let last = {};
      for await (last of stream("Redrive", { queue: name, messageIds })) tell(`${count(last.redriven)} put back…`);
      return last.notFoundIds?.length ? "It is not dead any more" : `${count(last.redriven)} put back into the line`;
    }, button);
  }

  return {
    element, title: name, trail: [["Queues", "#/"], [name, ""]],
    query: () => ({ queue: name }),
    hear(event, data) {
      if (event === "queue") {
        queue = { ...data.queue, eta: data.eta, at: instant(data.asOf) };
        counts = data.queue.counts ?? {};
        set(gone, "hidden", true);
        paint();
        lists.waiting.total(number(counts.length));
        lists.leased.total(number(counts.leased));
        if (isAdmin) lists.dead.total(number(counts.dead));
      } else if (event === "refused" && data.part === "queue") {
        say(gone, data.code === NOT_FOUND ? "There is no such queue now. Should it be created, it appears here." : data.text);
        set(gone, "hidden", false);
      } else if (event === "refused") {
        lists[data.part]?.refuse(`Not shown: ${data.text}.`);
      } else if (event in lists) {
        if (event === "dead") isAdmin = true;
        lists[event].take(data, counts);
        mayAct();
      }
    },
    tick() {
      if (queue) paintTime();
      for (const list of Object.values(lists)) list.tick();
    },
  };
}
