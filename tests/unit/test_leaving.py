"""What must be done in the end is tried until it is, and no longer than it can be."""

from __future__ import annotations

import asyncio

import pytest

from headwayd.domain.errors import HeadwayError, NewerLayout, OutcomeUnknown, QueueDeleted, StoreUnavailable
from headwayd.engine import leaving
from headwayd.engine.leaving import surely


@pytest.mark.parametrize(
    ("fails", "tries"),
    [
        ([StoreUnavailable("away"), OutcomeUnknown("lost")], 3),
        ([StoreUnavailable("away"), QueueDeleted("gone")], 2),
        ([StoreUnavailable("away"), NewerLayout("newer"), OutcomeUnknown("lost")], 2),
    ],
)
async def test_it_is_tried_until_it_is_done_or_cannot_be(
    monkeypatch: pytest.MonkeyPatch, fails: list[HeadwayError], tries: int
) -> None:
    monkeypatch.setattr(leaving, "_PAUSE_S", 0.0)
    tried = 0

    async def act() -> None:
        nonlocal tried
        tried += 1
        if tried <= len(fails):
            raise fails[tried - 1]

    async with asyncio.timeout(60):
        await surely("q", act)
    assert tried == tries
