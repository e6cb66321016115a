"""Messages that are kept as their payloads are those that would be kept one by one."""

from __future__ import annotations

import pytest

from headwayd.domain.bare import BareMessages, all_bytes, all_of, is_for_now, payload_bytes
from headwayd.domain.model import NewMessage

BARE = BareMessages([b"", b"a", b"bc"])
EACH = [NewMessage(b""), NewMessage(b"a"), NewMessage(b"bc")]
NAMED = [NewMessage(b"def", id="i", headers=b"hh")]


def test_each_message_is_made_when_it_is_asked_for() -> None:
    assert list(BARE) == EACH
    assert [BARE[i] for i in range(-3, 3)] == EACH + EACH
    assert len(BARE) == 3
    with pytest.raises(IndexError):
        BARE[3]


@pytest.mark.parametrize("part", [slice(0, 0), slice(1, 2), slice(1, None), slice(None, 9), slice(3, 9), slice(-1)])
def test_a_part_of_it_is_one_too(part: slice) -> None:
    assert isinstance(BARE[part], BareMessages)
    assert list(BARE[part]) == EACH[part]


def test_batches_that_are_all_bare_stay_so_together() -> None:
    assert all_of([BARE]) is BARE
    together = all_of([BARE, BareMessages([]), BARE])
    assert isinstance(together, BareMessages)
    assert list(together) == EACH + EACH


@pytest.mark.parametrize("batches", [[NAMED, BARE], [BARE, NAMED], [BARE, [], BARE], [NAMED, NAMED]])
def test_batches_of_which_one_is_not_bare_keep_their_order(batches: list[list[NewMessage]]) -> None:
    assert all_of(batches) == [message for batch in batches for message in batch]


def test_bytes_and_times_are_those_of_the_messages() -> None:
    assert payload_bytes(BARE) == 3
    assert (all_bytes(BARE), all_bytes(EACH), all_bytes(NAMED)) == (3, 3, 6)
    assert is_for_now(BARE)
    assert is_for_now([*EACH, NewMessage(b"", delay_ms=1)])
    assert not is_for_now([*EACH, NewMessage(b"", not_before_at_ms=1)])
