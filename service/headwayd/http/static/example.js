// The example page: puts jobs, and shows a <headway-place> for each. Which jobs they are stands in the page's address.

const at = (id) => document.getElementById(id);
const address = new URL(location.href);

async function call(name, request) {
  const token = at("token").value;
  const response = await fetch(`headway.v1.QueueService/${name}`, {
    method: "POST",
    headers: { "content-type": "application/json", ...(token && { authorization: `Bearer ${token}` }) },
    body: JSON.stringify(request),
  });
  const told = await response.json().catch(() => ({}));
  if (response.ok) return told;
  throw Object.assign(new Error(told.message || response.statusText), { code: told.code });
}

async function tried(act) {
  at("trouble").hidden = at("missing").hidden = true;
  try {
    await act();
  } catch (error) {
    at("trouble").textContent = error.message || String(error);
    at("trouble").hidden = false;
    at("missing").hidden = error.code !== "not_found";
  }
}

function base64(text) {
  return btoa(String.fromCharCode(...new TextEncoder().encode(text)));
}

function show(queue, id, label, isAttended) {
  const place = document.createElement("headway-place");
  Object.assign(place, { queue, message: id, attended: isAttended, token: at("token").value || null });
  place.setAttribute("label", label);
  const withdraw = document.createElement("button");
  Object.assign(withdraw, { type: "button", textContent: "Withdraw" });
  withdraw.setAttribute("aria-label", `Withdraw ${label}`);
  withdraw.addEventListener("click", () => tried(async () => {
    const { results } = await call("Withdraw", { queue, messageIds: [id] });
    if (results[0].error) throw new Error(results[0].error.message);
  }));
  place.addEventListener("progress", () => { withdraw.hidden = true; });
  place.addEventListener("position", () => { withdraw.hidden = false; });
  place.addEventListener("finished", () => {
    if (document.activeElement === withdraw) at("payload").focus();
    withdraw.hidden = true;
  });
  const item = document.createElement("li");
  item.append(place, withdraw);
  at("jobs").prepend(item);
  at("none").hidden = true;
}

async function submit() {
  const queue = at("queue").value, what = at("payload").value;
  // An id of our own, so that a second try of a call that was lost would put no second job.
  const id = `job-${[...crypto.getRandomValues(new Uint8Array(6))].map((each) => each.toString(16).padStart(2, "0")).join("")}`;
  await call("Put", { queue, messages: [{ id, payload: base64(what) }] });
  if (address.searchParams.get("queue") !== queue) address.searchParams.delete("job");
  address.searchParams.set("queue", queue);
  address.searchParams.append("job", id);
  history.replaceState(null, "", address);
  show(queue, id, what || id, at("attended").checked);
}

function explain() {
  at("worker").textContent = `headway work '${at("queue").value.replaceAll("'", "'\\''")}' -- sleep 5`;
}

at("form").addEventListener("submit", (event) => {
  event.preventDefault();
  tried(submit);
});
at("create").addEventListener("click", () => tried(async () => {
  await call("Create", { queue: at("queue").value });
  await submit();
}));
at("queue").addEventListener("input", explain);

at("queue").value = address.searchParams.get("queue") ?? at("queue").value;
for (const id of address.searchParams.getAll("job")) show(at("queue").value, id, id, false);
explain();
