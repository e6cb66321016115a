"""Other people's formulas, as well informed as they can be: they know every start and end of a lease, and the workers.

Written from what the formulas say, not from anybody's code.
"""

from __future__ import annotations

import heapq

from eta.simulation import State, Trace


class Gradio:
    """Rank times the mean time of all history, divided by the workers.

    Gradio divides by the configured number; here it is told how many are there at the moment.
    """

    name = "gradio"

    def p50(self, state: State, _trace: Trace, position: int) -> float | None:
        if not state.ended_count or not state.present:
            return None
        return position * state.ended_work_s / state.ended_count / state.present


class Parq:
    """The sum of the slot times: everybody ahead, in order, takes the slot that is expected to be free first, for a
    mean slot time. Slots that are taken are expected to be free when their lease is as old as that, or now if it is
    older.

    gtk-gnutella itself knows one slot per queue, and adds half a deviation or two to the mean: without that it errs
    less here.
    """

    name = "parq"

    def __init__(self) -> None:
        self._at = -1.0
        self._slots: list[float] = []
        self._waits: list[float] = []

    def p50(self, state: State, _trace: Trace, position: int) -> float | None:
        if not state.ended_count or not state.present:
            return None
        mean_s = state.ended_work_s / state.ended_count
        if state.at != self._at:
            self._at, self._waits = state.at, []
            self._slots = [
                max(lease.began_at + mean_s - state.at, 0.0)
                for worker, lease in state.leases.items()
                if worker not in state.left
            ]
            self._slots += [0.0] * (state.present - len(self._slots))
            heapq.heapify(self._slots)
        while len(self._waits) < position:
            self._waits.append(self._slots[0])
            heapq.heapreplace(self._slots, self._slots[0] + mean_s)
        return self._waits[position - 1]
