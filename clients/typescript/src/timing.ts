/** Waiting: for a span, and for how long before something is tried again. */
import { type Duration, durationFromMs } from "@bufbuild/protobuf/wkt";

const FIRST_MS = 100;
const LONGEST_MS = 5_000;

/** Waits; false if the signal ended it. */
export function pause(ms: number, signal?: AbortSignal): Promise<boolean> {
  return new Promise((resolve) => {
    const end = (isOver: boolean) => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", broken);
      resolve(isOver);
    };
    const broken = () => end(false);
    const timer = setTimeout(end, signal?.aborted ? 0 : ms, !signal?.aborted);
    signal?.addEventListener("abort", broken);
  });
}

/** The milliseconds after the n-th failure in a row: doubling from 0.1 s to 5 s, with jitter, never before it is due. */
export function backoffMs(failures: number, retryAfterMs = 0): number {
  const span = Math.min(LONGEST_MS, FIRST_MS * 2 ** Math.min(failures - 1, 16));
  return Math.max(span * (0.5 + Math.random() / 2), retryAfterMs);
}

/** A signal that is aborted when one of those given is, until it is unlinked: `AbortSignal.any` is never forgotten by
 * a signal that lives long. */
export function link(...signals: (AbortSignal | undefined)[]): { signal: AbortSignal; unlink: () => void } {
  const own = new AbortController();
  const given = signals.filter((each) => each !== undefined);
  const follow = () => own.abort(given.find((each) => each.aborted)?.reason);
  for (const each of given) {
    each.addEventListener("abort", follow);
  }
  if (given.some((each) => each.aborted)) {
    follow();
  }
  return { signal: own.signal, unlink: () => given.map((each) => each.removeEventListener("abort", follow)) };
}

/** Milliseconds as the wire has them, rounded up to whole ones; the service judges ranges. */
export function span(ms: number | undefined): Duration | undefined {
  return ms === undefined ? undefined : durationFromMs(Math.ceil(ms));
}
