"""A foreign client takes a queue away, and knows nothing of our keys: the first step that comes forgets them, and does
not keep the store busy with it."""

from __future__ import annotations

import pytest

from headwayd.domain.errors import QueueNotFound
from integration.desk import Desk


def calls(desk: Desk, command: str) -> int:
    """How often the store has run this command."""
    stats: dict[str, dict[str, int]] = desk.raw.info("commandstats")
    return stats.get(f"cmdstat_{command}", {"calls": 0})["calls"]


@pytest.mark.parametrize("is_made_anew", [False, True])
async def test_what_was_kept_of_it_is_freed_in_the_background(desk: Desk, is_made_anew: bool) -> None:
    await desk.create()
    await desk.put(b"1", b"2", ids=["one", "two"])
    await desk.take_one()
    desk.raw.delete(desk.key("bound"), desk.key("q"))
    if is_made_anew:
        desk.raw.set(desk.key("bound"), 0)
    unlinked, deleted = calls(desk, "unlink"), calls(desk, "del")
    if is_made_anew:
        assert await desk.take() == []
        assert (await desk.counts()).leased == 0
    else:
        with pytest.raises(QueueNotFound):
            await desk.take()
    assert (calls(desk, "unlink") - unlinked, calls(desk, "del") - deleted) == (1, 0)
    assert not desk.raw.exists(desk.key("lease"), desk.key("ids"))
    await desk.create()
