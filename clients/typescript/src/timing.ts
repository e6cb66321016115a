/** Waiting: for a span, and for how long before something is tried again. */
import { durationFromMs } from "@bufbuild/protobuf/wkt";

/** Waits; false if the signal ended it. */
export function pause(ms: number, signal?: AbortSignal): Promise<boolean> {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      resolve(!signal?.aborted);
    };
    const timer = setTimeout(end, signal?.aborted ? 0 : ms);
    signal?.addEventListener("abort", end);
  });
}

/** The milliseconds after the n-th failure in a row: doubling from 0.1 s to 5 s, with jitter, never before it is due. */
export const backoffMs = (failures: number, retryAfterMs = 0): number =>
  Math.max(Math.min(5_000, 50 * 2 ** failures) * (0.5 + Math.random() / 2), retryAfterMs);

/** Tells of what went wrong where nobody waits for it. */
export const warn = (error: unknown) => console.warn("headway: behind the scenes:", error);

/** Milliseconds as the wire has them, rounded up to whole ones; the service judges ranges. */
export const span = (ms?: number) => (ms === undefined ? undefined : durationFromMs(Math.ceil(ms)));
