// Numbers, spans and times as people read them. The service's JSON has 64-bit numbers as text and leaves zeros out.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const number = value => Number(value ?? 0);

// 12,345; from a million on 1.2M.
export function count(value) {
  const known = number(value);
  return known >= 1e6 ? short.format(known) : whole.format(known);
}

// Per second: as many digits as mean something.
export function rate(value) {
  const known = number(value);
  if (known < 0.005) return "0";
  if (known < 10) return known.toFixed(known < 1 ? 2 : 1);
  return count(known);
}

// Seconds of a span such as "1.500s"; null if there is none.
export const seconds = text => (text === undefined || text === null ? null : Number.parseFloat(text));

// 850 ms, 4.2 s, 12 min 5 s, 3 h 20 min, 5 d 4 h.
export function span(value) {
  if (value === null || Number.isNaN(value)) return "–";
  if (value >= 9.95 || Number.isInteger(value)) return long(Math.round(value));
  return value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(1)} s`;
}

function long(all) {
  if (all < 60) return `${all} s`;
  if (all < 3600) return two(Math.floor(all / 60), "min", all % 60, "s");
  const minutes = Math.round(all / 60);
  if (minutes < 1440) return two(Math.floor(minutes / 60), "h", minutes % 60, "min");
  const hours = Math.round(all / 3600);
  return two(Math.floor(hours / 24), "d", hours % 24, "h");
}

const two = (large, unit, small, smaller) => (small ? `${large} ${unit} ${small} ${smaller}` : `${large} ${unit}`);

// An age that grows by itself: whole seconds, so that it ticks calmly.
export const age = value => (value === null ? "–" : span(Math.floor(value)));

// An estimate, as { text, title }.
export function eta(estimate) {
  if (!estimate?.known) return { text: "–", title: "Nothing to estimate it by: paused, no consumer seen, or too few done" };
  const likely = span(seconds(estimate.p50) ?? 0);
  const late = span(seconds(estimate.p90) ?? 0);
  return { text: `${likely}`, title: `Half of the waits are expected to take no longer than ${likely}, nine of ten no longer than ${late}`, late };
}

export const instant = text => (text ? Date.parse(text) / 1000 : null);

// The store's clock as seen here: what it said last, and what has passed since.
let offset = 0;
export function learnClock(asOf) {
  const told = instant(asOf);
  if (told !== null) offset = told - Date.now() / 1000;
}
export const now = () => Date.now() / 1000 + offset;

export const since = text => {
  const at = instant(text);
  return at === null ? null : Math.max(0, now() - at);
};
