"""Outcomes that are told by a few facts are those that would be told one by one."""

from __future__ import annotations

import pytest

from headwayd.domain.bare import BareMessages
from headwayd.domain.errors import QueueFull
from headwayd.domain.joined import Joined, errors_of
from headwayd.domain.model import NewMessage, PutCode, PutOutcome
from headwayd.store.replies import put_outcomes

JOINED = Joined("g", 98, 8, 4)
EACH = [PutOutcome(PutCode.QUEUED, f"~g-{98 + i}", 98 + i, 8 + i) for i in range(4)]


def test_each_outcome_is_made_when_it_is_asked_for() -> None:
    assert list(JOINED) == EACH
    assert [JOINED[i] for i in range(-4, 4)] == EACH + EACH
    assert len(JOINED) == 4
    assert not Joined("g", 1, 1, 0)
    for outside in (-5, 4):
        with pytest.raises(IndexError):
            JOINED[outside]


@pytest.mark.parametrize("part", [slice(0, 0), slice(1, 3), slice(2, None), slice(None, 9), slice(4, 9), slice(-1)])
def test_a_part_of_it_is_one_too(part: slice) -> None:
    assert isinstance(JOINED[part], Joined)
    assert list(JOINED[part]) == EACH[part]


def test_a_part_with_gaps_is_told_one_by_one() -> None:
    assert JOINED[::2] == EACH[::2]
    assert JOINED[::-1] == EACH[::-1]


def test_there_are_no_errors_in_it() -> None:
    full = QueueFull("full")
    assert not errors_of(JOINED)
    assert errors_of([*JOINED, PutOutcome(PutCode.REFUSED, "", error=full)]) == [full]


@pytest.mark.parametrize("is_bare", [True, False])
def test_bare_messages_that_joined_the_tail_are_told_so(*, is_bare: bool) -> None:
    given_ids = ["", ""] if is_bare else ["a", ""]
    reply = [b"OK", b"1", b"g", b"", b"", b"0", b"5", b"3", 2, b"0", b"0"]
    named = [NewMessage(b"x", id=given) for given in given_ids]
    outcomes = put_outcomes("q", reply, BareMessages([b"x"] * 2) if is_bare else named)
    assert isinstance(outcomes, Joined) is is_bare
    assert list(outcomes) == [
        PutOutcome(PutCode.QUEUED, given or f"~g-{5 + i}", 5 + i, 3 + i) for i, given in enumerate(given_ids)
    ]
