// One message, followed live: its place, who works on it, and how it ended.

import { h, say, set } from "./dom.js";
import { count, eta, instant, learnClock, now, number, span } from "./format.js";

const STEPS = ["Waiting", "Being worked on", "Finished"];
const OUTCOMES = {
  OUTCOME_DONE: ["Done", "The message was acked."],
  OUTCOME_DEAD: ["Dead", "It used up its attempts or its time, and is kept for inspection."],
  OUTCOME_WITHDRAWN: ["Withdrawn", "It was cancelled before it was done."],
  OUTCOME_EXPIRED: ["Expired", "Its time was over before anybody took it."],
  OUTCOME_DELETED: ["Deleted", "Its queue was deleted."],
};
const UNKNOWN = ["Not known", "There is no such message, or its outcome is not remembered any more."];

// The bytes of a result as text if they are text.
function shown(result) {
  const bytes = Uint8Array.from(atob(result), letter => letter.charCodeAt(0));
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return `${count(bytes.length)} bytes, in base64: ${result}`;
  }
}

export function messageView(queue, id) {
  let availableAt = null;
  const steps = STEPS.map(text => h("li", {}, text));
  const title = h("p", { class: "place" }, "Looking for it…");
  const detail = h("p", { class: "detail" });
  const moved = h("p", { class: "note", hidden: true }, "Others came back ahead of it, so it stands farther back than before.");
  const working = h("progress", { max: "1", hidden: true, "aria-label": "How far the work has come" });
  const note = h("p", { class: "note" });
  const result = h("section", { class: "result", hidden: true }, h("h2", {}, "Result"), h("pre", { tabindex: "0" }));
  const card = h("section", { class: "card follow", "aria-label": "Where it stands" },
    h("ol", { class: "steps" }, steps), h("div", { role: "status" }, title, detail), moved, working, note, result);
  const element = h("div", {},
    h("div", { class: "head" }, h("h1", { tabindex: "-1" }, h("span", { class: "id" }, id))),
    h("p", { class: "under" }, "in ", h("a", { href: `#/queues/${encodeURIComponent(queue)}`, class: "name" }, queue)), card);

  function step(number, kind) {
    set(card, "data-kind", kind);
    steps.forEach((each, i) => {
      set(each, "aria-current", i === number ? "step" : null);
      set(each, "class", i < number ? "past" : i === number ? "present" : null);
    });
  }

  function waits(place) {
    const expected = eta(place.eta);
    availableAt = instant(place.availableAt);
    const isWaiting = number(place.position) > 0;
    step(0, "waiting");
    say(title, isWaiting ? `Number ${count(place.position)} of ${count(place.length)}` : "Delayed");
    if (isWaiting) say(detail, expected.late ? `About ${expected.text}; nine of ten wait less than ${expected.late}` : "No basis for an estimate yet");
    else tick();
    set(moved, "hidden", !place.movedBack);
    set(working, "hidden", true);
    say(note, "");
  }

  function tick() {
    if (availableAt !== null) say(detail, `Joins the line in ${span(Math.max(0, Math.ceil(availableAt - now())))}`);
  }

  function worked({ attempt, progress }) {
    step(1, "leased");
    availableAt = null;
    say(title, "Being worked on");
    say(detail, number(attempt) > 1 ? `Attempt ${count(attempt)}` : "First attempt");
    set(moved, "hidden", true);
    set(working, "hidden", false);
    set(working, "value", progress ? number(progress.fraction) : null);
    say(note, progress ? `${Math.round(number(progress.fraction) * 100)} % ${progress.note ?? ""}`.trim() : "It has not told how far it is");
  }

  function finished({ outcome, result: bytes, cause }) {
    const [text, meaning] = OUTCOMES[outcome] ?? UNKNOWN;
    step(2, outcome === "OUTCOME_DONE" ? "done" : "ended");
    availableAt = null;
    say(title, text);
    say(detail, cause || meaning);
    set(moved, "hidden", true);
    set(working, "hidden", true);
    say(note, "");
    set(result, "hidden", !bytes);
    if (bytes) say(result.lastElementChild, shown(bytes));
  }

  return {
    element, title: id, tick,
    trail: [["Queues", "#/"], [queue, `#/queues/${encodeURIComponent(queue)}`], [id, ""]],
    query: () => ({ queue, message: id }),
    hear(event, data) {
      if (event === "refused") {
        say(title, "Not to be followed now");
        say(detail, data.text);
      }
      if (event !== "place") return;
      learnClock(data.asOf);
      if (data.position) waits(data.position);
      else if (data.leased) worked(data.leased);
      else if (data.finished) finished(data.finished);
    },
  };
}
