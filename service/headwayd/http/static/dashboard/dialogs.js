// What is asked of people: a token, and whether they mean it. The browser's own dialog keeps the focus and hears Escape.

import { setToken } from "./calls.js";
import { byId, h, set } from "./dom.js";

// Shows a form; resolves with what `read` makes of it, or null if it was left.
function ask(title, content, { confirm, kind = "main", read, check = () => true }) {
  const dialog = byId("dialog");
  return new Promise(resolve => {
    let answer = null;
    const button = h("button", { class: kind }, confirm);
    const look = () => set(button, "disabled", !check());
    const form = h("form", {
      onsubmit: event => {
        event.preventDefault();
        if (!check()) return;
        answer = read();
        dialog.close();
      },
      oninput: look,
    }, h("h2", { id: "dialog-title" }, title), content, h("div", { class: "buttons" },
      h("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Cancel"), button));
    dialog.replaceChildren(form);
    dialog.addEventListener("close", () => {
      dialog.replaceChildren();
      resolve(answer);
    }, { once: true });
    look();
    dialog.showModal();
    form.querySelector("input:not([type=checkbox])").focus();
  });
}

// Whether a token was given, or taken back by an empty one.
export async function askForToken() {
  const input = h("input", { type: "password", id: "token-input", autocomplete: "off", spellcheck: "false" });
  const token = await ask("Who are you?", [
    h("p", {}, "Give a token of this service. It stays in this tab and is forgotten with it; an empty one forgets it now."),
    h("label", { for: "token-input" }, "Token"), input,
  ], { confirm: "Use it", read: () => input.value.trim() });
  if (token !== null) setToken(token);
  return token !== null;
}

// What to purge, once the queue's name was typed: { dead }; else null.
export function confirmPurge(name) {
  const typed = h("input", { type: "text", id: "purge-name", autocomplete: "off", spellcheck: "false", autocapitalize: "off" });
  const dead = h("input", { type: "checkbox", id: "purge-dead" });
  return ask("Purge this queue?", [
    h("p", {}, "Every message that waits or is delayed is removed for good. What is being worked on stays with its workers."),
    h("p", { class: "check" }, dead, h("label", { for: "purge-dead" }, "Remove the dead, too")),
    h("label", { for: "purge-name" }, "Type the queue’s name to confirm: ", h("strong", { class: "name" }, name)), typed,
  ], { confirm: "Purge", kind: "danger", check: () => typed.value === name, read: () => ({ dead: dead.checked }) });
}

// Tells what became of something, for a while.
let timer = null;
export function tell(text, kind = "well") {
  const said = byId("said");
  said.textContent = text;
  set(said, "class", `said ${kind}`);
  clearTimeout(timer);
  timer = setTimeout(() => { said.textContent = ""; }, 8000);
}
