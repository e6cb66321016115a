"""Deliberate defects, each with the named test that must catch it. One entry in `defects` is all it takes to add one.

`old` is a fragment that occurs exactly once in `file`, as short and lasting as can be. `test` is the most specific test
that fails with the defect every time, not one that happens to.
"""

from __future__ import annotations

from mutants.defects import (
    bundles,
    calls,
    costs,
    counting,
    doors,
    durability,
    foreign,
    gates,
    layout,
    leases,
    link,
    long_lines,
    order,
    overload,
    rights,
    servers,
    streams,
    together,
    waiting,
)
from mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *leases.MUTANTS,
    *bundles.MUTANTS,
    *calls.MUTANTS,
    *order.MUTANTS,
    *link.MUTANTS,
    *waiting.MUTANTS,
    *streams.MUTANTS,
    *together.MUTANTS,
    *costs.MUTANTS,
    *long_lines.MUTANTS,
    *overload.MUTANTS,
    *counting.MUTANTS,
    *doors.MUTANTS,
    *durability.MUTANTS,
    *foreign.MUTANTS,
    *gates.MUTANTS,
    *layout.MUTANTS,
    *rights.MUTANTS,
    *servers.MUTANTS,
)
