"""Leases kept as the runs they are, and what they are to who looks at each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwayd.domain.leases import (
    LeaseRuns,
    Run,
    all_leases,
    joined,
    named,
    step_of,
    steps_of,
    texts,
)
from headwayd.store import tokens

GENERATION, OTHER = bytes(range(8)), bytes(8)
NONCES = [bytes(16) + b"\0\0\0\1", b"\xff" * 16 + b"\0\0\0\1", b"\xff" * 16 + b"\0\0\0\2"]


@st.composite
def some_runs(draw: st.DrawFn, *, most: int = 4) -> LeaseRuns:
    """Of some steps, also such that go on where the one before ends."""
    runs: list[Run] = []
    for _ in range(draw(st.integers(0, most))):
        first, count = draw(st.integers(0, 2**53 - 2_400)), draw(st.integers(1, 600))
        if draw(st.booleans()) and runs:
            first = runs[-1].tickets.stop
        generation, nonce = draw(st.sampled_from([GENERATION, OTHER])), draw(st.sampled_from(NONCES))
        runs.append(Run(generation, nonce, range(first, first + count)))
    return LeaseRuns(runs)


def one_by_one(leases: LeaseRuns) -> list[str]:
    return [
        tokens.encoder(run.generation.hex().encode())(ticket, run.nonce[:16], int.from_bytes(run.nonce[16:]))
        for run in leases.runs
        for ticket in run.tickets
    ]


@given(some_runs(), st.slices(700))
def test_runs_are_their_leases(leases: LeaseRuns, part: slice) -> None:
    made = one_by_one(leases)
    assert list(leases) == made
    assert len(leases) == len(made)
    assert list(leases[part]) == made[part]
    numbers = range(-len(made), len(made), 97)
    assert [leases[at] for at in numbers] == [made[at] for at in numbers]
    with pytest.raises(IndexError):
        leases[len(made)]


@given(st.lists(some_runs(most=2), max_size=4), st.booleans())
def test_leases_of_several_are_those_of_all(parts: list[LeaseRuns], has_texts: bool) -> None:
    given: list[Sequence[str]] = [*parts]
    if has_texts:
        given.append(("a", "b"))
    both = all_leases(given)
    assert list(both) == [lease for part in given for lease in part]
    if type(both) is LeaseRuns and len(parts) > 1 and all(parts):
        assert not any(behind.follows(before) for before, behind in zip(both.runs, both.runs[1:], strict=False))


@given(some_runs())
def test_runs_have_the_names_of_their_leases(leases: LeaseRuns) -> None:
    assert tokens.decode_all(leases) == [
        word
        for run in leases.runs
        for word in (run.generation.hex().encode(), run.nonce, -len(run.tickets), run.tickets.start)
    ]
    for run in leases.runs:
        assert [named(text) for text in texts(run)] == [(run.generation, ticket, run.nonce) for ticket in run.tickets]


@given(some_runs(most=1), st.binary(max_size=3))
def test_tokens_are_joined(leases: LeaseRuns, behind: bytes) -> None:
    for run in leases.runs:
        assert joined(run, behind) == b"".join(lease.encode() + behind for lease in one_by_one(leases))


@given(some_runs())
def test_steps_are_those_of_the_leases(leases: LeaseRuns) -> None:
    assert steps_of(leases) == steps_of(list(leases)) == Counter(map(step_of, leases))
    assert steps_of(leases).keys() == {run.step for run in leases.runs}
    assert len(steps_of(leases)) == len({run.nonce for run in leases.runs})
