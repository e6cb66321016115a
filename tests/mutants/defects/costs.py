"""Defects that nobody sees in an answer: what is dearer than it need be."""

from __future__ import annotations

from mutants.mutant import INCLUDE, LUA, Mutant

FLAT = "tests/integration/test_flat_steps.py::test_no_step_grows_with_the_queue"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="whole-line-searched",
        defect="Every step that writes walks through all messages that wait.",
        file=INCLUDE + "commit.lua",
        old="  S.len = S.size - S.n_holes\n  if S.size",
        new="  redis.call('LPOS', K.q, '')\n  S.len = S.size - S.n_holes\n  if S.size",
        test=FLAT,
    ),
    Mutant(
        name="every-lease-looked-at",
        defect="A step that leases asks about all that is leased.",
        file=LUA + "get.lua",
        old="local leased = leased_count(S)",
        new="local leased = #redis.call('ZRANGE', K.leases, 0, -1) + S.n_bundled",
        test=FLAT,
    ),
    Mutant(
        name="freed-memory-given-back",
        defect="The service gets the pages of each large request anew.",
        file="app.py",
        old="    keep_freed_memory()\n",
        new="",
        test="tests/integration/test_allocator.py"
        "::test_a_service_keeps_what_was_freed_unless_its_environment_says_otherwise",
    ),
)
