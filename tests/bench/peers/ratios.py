"""Headway, in the better of its modes, beside the best of the others in theirs: phase by phase."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from bench.peers.contest import Run
from bench.tables import Table

OURS = ("Headway, streams", "Headway, calls", "Headway, Go", "Headway, Go, 2 workers")
FLOOR = "Redis list"  # it has no acks, so it is no queue to compare with


def ratios() -> Table:
    """Without rows yet."""
    return Table(
        "Headway ÷ the best of the others",
        ["durability, size, clients", "put", "get + ack", "end to end"],
        "Medians, each in the better of its modes; the plain list is left out.",
    )


def ratio_row(title: str, runs: Mapping[str, Sequence[Run]]) -> list[str] | None:
    """The line of one table; None if Headway or all others are not in it. Runs with a fault do not count."""
    sound = {name: them for name, them in runs.items() if them and not any(run.fault for run in them)}
    others = [name for name in sound if name not in (*OURS, FLOOR)]
    ours = [name for name in sound if name in OURS]
    if not ours or not others:
        return None
    cells = [title]
    for phase in ("put", "take", "both"):
        median = {name: statistics.median(getattr(run, phase) for run in them) for name, them in sound.items()}
        best = max(others, key=lambda name: median[name])
        ratio = max(median[name] for name in ours) / median[best] if median[best] else 0.0
        cells.append(f"{ratio:.2f} × {best}")
    return cells
