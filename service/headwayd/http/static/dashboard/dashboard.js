// The page: which view the address asks for, its one stream, and what stands above every view.

import { hasToken } from "./calls.js";
import { askForToken } from "./dialogs.js";
import { byId, h, say, set } from "./dom.js";
import { learnClock } from "./format.js";
import { forgetUnlisted, note } from "./history.js";
import { messageView } from "./message.js";
import { queueView } from "./queue.js";
import { queuesView } from "./queues.js";
import { Stream } from "./stream.js";
import { followTheme } from "./theme.js";

const main = byId("main");
const about = { guarded: false, actions: false };
let view = null;
let stream = null;
let isFirst = true;

// "#/queues/NAME/messages/ID", each part percent-encoded.
function route() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").map(part => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  if (parts[0] === "queues" && parts[1]) {
    if (parts[2] === "messages" && parts[3]) return messageView(parts[1], parts[3]);
    return queueView(parts[1], about);
  }
  return queuesView(reopen);
}

function show() {
  stream?.close();
  view = route();
  main.replaceChildren(view.element);
  trail(view.trail);
  document.title = view.title ? `${view.title} · Headway` : "Headway";
  if (!isFirst) main.querySelector("h1")?.focus();
  isFirst = false;
  reopen();
}

// Opens the view's stream, also anew when it looks at something else.
function reopen() {
  stream?.close();
  link("wait", "Connecting");
  const shown = view;
  stream = new Stream(view.query(), (name, data) => {
    if (name === "about") {
      Object.assign(about, data);
      set(byId("token"), "hidden", !about.guarded);
    }
    if (name === "queues") forgetUnlisted(data.names);
    if (name === "queue" && data.asOf) {
      learnClock(data.asOf);
      note(data);
    }
    shown.hear(name, data);
  }, (state, refusal) => {
    if (state === "live") link("live", "Live");
    else if (state === "lost") link("lost", "Reconnecting…");
    else refused(refusal);
  });
}

function refused({ code, text }) {
  link("refused", "Not allowed");
  set(byId("token"), "hidden", false);
  if (code === 7 && view.refuse) return view.refuse(text); // another question may be allowed
  const needsToken = code === 16;
  const title = needsToken ? "This service asks who you are" : "You may not look at this";
  main.replaceChildren(h("section", { class: "card refused" }, h("h1", { tabindex: "-1" }, title), h("p", {}, text),
    h("button", { type: "button", class: "main", onclick: enterToken }, needsToken && !hasToken() ? "Enter a token" : "Enter another token")));
  main.querySelector("button").focus();
}

async function enterToken() {
  if (await askForToken()) show();
}

function link(kind, text) {
  set(byId("link"), "class", `link ${kind}`);
  set(main, "data-state", kind);
  say(byId("link-text"), text);
}

function trail(steps) {
  const shown = steps.map(([text, address], i) => h("li", {}, i === steps.length - 1
    ? h("span", { "aria-current": "page" }, text)
    : h("a", { href: address }, text)));
  byId("trail").replaceChildren(h("ol", {}, shown));
}

followTheme(byId("theme"));
byId("token").addEventListener("click", enterToken);
document.querySelector(".skip").addEventListener("click", event => {
  event.preventDefault(); // the address is the view's
  main.focus();
});
addEventListener("hashchange", show);
addEventListener("pagehide", () => stream?.close());
addEventListener("pageshow", event => { if (event.persisted) show(); });
setInterval(() => view.tick(), 1000);
show();
