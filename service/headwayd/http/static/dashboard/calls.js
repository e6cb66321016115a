// The calls of the service by JSON, from the page's own origin, with the token that was typed in.

const TOKEN = "headway-token"; // of this tab, and forgotten with it

export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;

export function setToken(token) {
  if (token) sessionStorage.setItem(TOKEN, token);
  else sessionStorage.removeItem(TOKEN);
}

export function authorization() {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { authorization: `Bearer ${token}` } : {};
}

// Why a call was refused, in the service's words.
export class Refused extends Error {
  constructor({ code, message }) {
    super(message || code || "the service did not answer");
    this.code = code;
  }
}

const path = call => `/headway.v1.AdminService/${call}`;

// The answer of a call of one answer.
export async function call(name, request) {
  const response = await fetch(path(name), {
    method: "POST",
    headers: { "content-type": "application/json", ...authorization() },
    body: JSON.stringify(request),
  });
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(answer);
  return answer;
}

// The answers of a call that streams them, framed as Connect has it: a byte of flags, four of size, JSON.
export async function* stream(name, request) {
  const response = await fetch(path(name), {
    method: "POST",
    headers: { "content-type": "application/connect+json", ...authorization() },
    body: framed(JSON.stringify(request)),
  });
  if (!response.ok) throw new Refused(await response.json().catch(() => ({})));
  const reader = response.body.getReader();
  let rest = new Uint8Array();
  while (true) {
    const { value, done } = await reader.read();
    if (done) return;
    rest = joined(rest, value);
    while (rest.length >= 5) {
      const size = new DataView(rest.buffer, rest.byteOffset).getUint32(1);
      if (rest.length < 5 + size) break;
      const answer = JSON.parse(new TextDecoder().decode(rest.subarray(5, 5 + size)));
      const isEnd = rest[0] & 2;
      rest = rest.slice(5 + size);
      if (!isEnd) yield answer;
      else if (answer.error) throw new Refused(answer.error);
      else return;
    }
  }
}

function framed(text) {
  const data = new TextEncoder().encode(text);
  const frame = new Uint8Array(5 + data.length);
  new DataView(frame.buffer).setUint32(1, data.length);
  frame.set(data, 5);
  return frame;
}

function joined(one, other) {
  const both = new Uint8Array(one.length + other.length);
  both.set(one);
  both.set(other, one.length);
  return both;
}
