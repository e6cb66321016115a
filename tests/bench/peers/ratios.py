"""Headway, in the better of its modes, beside the best of the others in theirs: phase by phase.

Go is compared with Go, and whatever else with Python: on few cores a client takes from its service what it needs
itself, and one in Go needs less.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.peers.contest import Run
from bench.tables import Table

OURS = ("Headway, streams", "Headway, calls", "Headway, Python client", "Headway, Go", "Headway, Go, 2 workers")
# They lose what a consumer holds: the list when that crashes, NSQ when its server is killed (nsq_kill.py).
FORGETFUL = ("Redis list", "NSQ, Go")


def ratios() -> Table:
    """Without rows yet."""
    return Table(
        "Headway ÷ the best of the others",
        ["durability, size, clients", "put", "get + ack", "end to end"],
        "Medians, each in the better of its modes, Go beside Go and others beside Python; those that lose what a"
        " consumer holds are left out.",
    )


def is_by_go(peer: str) -> bool:
    """Whether its client is one in Go, which names tell."""
    return ", Go" in peer


@dataclass(frozen=True)
class Mode:
    """A peer in one of its modes, and how fast it was."""

    peer: str
    name: str
    runs: Sequence[Run]

    @property
    def is_sound(self) -> bool:
        """It was measured, and each message came exactly once."""
        return bool(self.runs) and not any(run.fault for run in self.runs)

    def median(self, phase: str) -> float:
        """Messages per second."""
        rates: list[float] = [getattr(run, phase) for run in self.runs]
        return statistics.median(rates)


def ratio_row(title: str, modes: Sequence[Mode]) -> list[str] | None:
    """The line of one table; None if Headway or all others are not in it. Modes in which a run had a fault do not
    count. There is no ratio where Headway is not in it by the best one's language."""
    sound = [mode for mode in modes if mode.is_sound]
    others = [mode for mode in sound if mode.peer not in (*OURS, *FORGETFUL)]
    ours = [mode for mode in sound if mode.peer in OURS]
    if not ours or not others:
        return None
    cells = [title]
    for phase in ("put", "take", "both"):
        best = max(others, key=lambda mode: mode.median(phase))
        most = best.median(phase)
        alike = [mode.median(phase) for mode in ours if is_by_go(mode.peer) == is_by_go(best.peer)]
        ratio = f"{max(alike) / most if most else 0.0:.2f}" if alike else "–"
        cells.append(f"{ratio} × {best.name}")
    return cells
