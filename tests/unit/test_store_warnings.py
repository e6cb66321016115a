"""What the log tells of what a store lacks: each thing when it comes up, and not at every look."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import structlog

from headwayd.domain.errors import StoreUnavailable
from headwayd.domain.model import StoreFacts
from headwayd.store import asking
from headwayd.store.durability import ALWAYS
from headwayd.store.redis_store import RedisStore
from unit.stores import store_of_nobody

AWAY = None
Said = tuple[str, ...] | None


@pytest.fixture
async def store() -> AsyncIterator[RedisStore]:
    made = store_of_nobody(ALWAYS)
    yield made
    await made.close()


async def told(store: RedisStore, monkeypatch: pytest.MonkeyPatch, *looks: Said, refusal: str = "") -> list[list[str]]:
    """The warnings in the log after each look, at which the store says so of itself."""
    found: list[list[str]] = []
    for said in looks:

        async def ask(*_: object, said: Said = said, **__: object) -> StoreFacts:
            if said is AWAY:
                raise StoreUnavailable("away")
            return StoreFacts(is_reachable=True, prefix="p", warnings=said, refusal=refusal)

        monkeypatch.setattr(asking, "ask_facts", ask)
        with structlog.testing.capture_logs() as logged:
            try:
                await store.probe(budget_s=1)
            except StoreUnavailable:
                assert said is AWAY
        found.append([one["warning"] for one in logged if one["log_level"] == "warning"])
    return found


async def test_each_warning_is_told_when_it_comes_up(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = (AWAY, ("old", "evicts"), ("old", "evicts"), AWAY, ("evicts",), ("evicts", "no file"), (), ("evicts",))
    assert await told(store, monkeypatch, *looks) == [
        [],
        ["old", "evicts"],
        [],
        [],
        [],
        ["no file"],
        [],
        ["evicts"],
    ]


async def test_why_nothing_is_written_is_no_warning(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await told(store, monkeypatch, ("old", "too little"), refusal="too little") == [["old"]]
