// Elements, made and changed without a word of HTML: whatever a queue or a message is called, it is text.

// An element with attributes, listeners (`onclick: …`) and children: elements or texts; null is none.
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

// The same of a picture.
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else set(element, name, value);
  }
  element.append(...children.flat().filter(child => child !== null && child !== undefined));
  return element;
}

// Changes an attribute if it is another one; null and false take it away.
export function set(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else {
    const text = value === true ? "" : String(value);
    if (element.getAttribute(name) !== text) element.setAttribute(name, text);
  }
}

// Changes the text if it is another one: what stays the same is neither painted nor read out again.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const byId = id => document.getElementById(id);

// Shows these rows, by key, in this order; those that are there already are moved only if they must be.
export function arrange(body, rows) {
  let at = body.firstElementChild;
  for (const row of rows) {
    if (row === at) at = at.nextElementSibling;
    else body.insertBefore(row, at);
  }
  while (at) {
    const next = at.nextElementSibling;
    at.remove();
    at = next;
  }
}

// A table that scrolls sideways where it must, by keys, too. Columns: [title, class].
export function table(caption, columns) {
  const body = h("tbody");
  const head = columns.map(([title, kind]) => h("th", { scope: "col", class: kind }, title));
  const whole = h("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" },
    h("table", {}, h("caption", { class: "unseen" }, caption), h("thead", {}, h("tr", {}, head)), body));
  return { whole, body };
}

// What stands where there is nothing.
export function empty(title, ...lines) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), lines.map(line => h("p", {}, line)));
}
