// What a queue's numbers were while this page was open, for pictures. Kept while the page shows another.

import { instant, now, number } from "./format.js";

const KEPT_S = 310;
const GAP_S = 3; // without news for longer nothing has changed: the line stays where it was until just before the news
const NEWS_S = 1.2; // until the numbers of an instant are here
const known = new Map();

// Takes one answer of WatchQueue.
export function note({ queue, asOf }) {
  const at = instant(asOf);
  if (at === null) return;
  let samples = known.get(queue.name);
  if (!samples) known.set(queue.name, samples = []);
  const last = samples.at(-1);
  const { accepted, acked, length } = queue.counts ?? {};
  const sample = { at, put: number(accepted), ack: number(acked), length: number(length) };
  if (last && (at <= last.at || sample.put < last.put)) {
    if (sample.put < last.put) known.set(queue.name, [sample]); // another queue of the same name
    return;
  }
  if (last && at - last.at > GAP_S) samples.push({ ...last, at: at - 1 });
  samples.push(sample);
  while (samples[0].at < at - KEPT_S) samples.shift();
}

// Of a queue that is listed no more, and has told nothing for so long, nothing would be drawn. One that is may be idle.
export function forgetUnlisted(names) {
  const listed = new Set(names);
  for (const [name, samples] of known) if (!listed.has(name) && samples.at(-1).at < now() - KEPT_S) known.delete(name);
}

function at(samples, field, time) {
  let low = 0;
  let high = samples.length - 1;
  if (time >= samples[high].at) return samples[high][field];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (samples[middle].at <= time) low = middle;
    else high = middle;
  }
  const [one, next] = [samples[low], samples[high]];
  return one[field] + (next[field] - one[field]) * (time - one.at) / (next.at - one.at);
}

// `steps` values of the last `span_s` seconds, oldest first; null where nothing is known. Of "put" and "ack" what went
// through per second, of "length" the length.
export function series(name, field, span_s, steps) {
  const samples = known.get(name) ?? [];
  const width = span_s / steps;
  const end = Math.floor((now() - NEWS_S) / width) * width; // pictures move on by whole steps
  return Array.from({ length: steps }, (_, i) => {
    const to = end - (steps - 1 - i) * width;
    if (!samples.length || to - width < samples[0].at) return null;
    if (field === "length") return at(samples, field, to);
    return (at(samples, field, to) - at(samples, field, to - width)) / width;
  });
}
