"""Readiness: several answers of the store in a row change the verdict, never one."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
import structlog

from headwayd.config.settings import Settings
from headwayd.domain.errors import StoreUnavailable
from headwayd.domain.model import StoreFacts
from headwayd.engine.ports import Store
from headwayd.engine.readiness import ANSWERS, FAILURES, Readiness


class Answers:
    """A store that answers as the script says, "+", or is away, "-", or refuses, "!", and then says nothing more."""

    def __init__(self, script: str, *, is_reachable: bool) -> None:
        self.facts = StoreFacts(is_reachable=is_reachable)
        self.asked: list[str] = []
        self.budgets: list[float] = []
        self.is_over = asyncio.Event()
        self._left = list(script)

    async def ping(self, *, budget_s: float) -> None:
        self.budgets.append(budget_s)
        await self._answer("ping")

    async def probe(self, *, budget_s: float) -> StoreFacts:
        self.budgets.append(budget_s)
        await self._answer("probe")
        return self.facts

    async def _answer(self, kind: str) -> None:
        if not self._left:
            self.is_over.set()
            await asyncio.Event().wait()
        self.asked.append(kind)
        match self._left.pop(0):
            case "-":
                raise StoreUnavailable("away", metadata={"cause": "REFUSED"})
            case "!":
                raise StoreUnavailable("no password", metadata={"cause": "STORE"})


async def told_by(store: Answers) -> list[bool]:
    """What a listener is told, from the beginning."""
    readiness, told = Readiness(cast(Store, store), every_s=0), list[bool]()
    readiness.on_change(told.append)
    running = asyncio.create_task(readiness.run())
    async with asyncio.timeout(5):
        await store.is_over.wait()
    running.cancel()
    await asyncio.wait({running})
    return told


@pytest.mark.parametrize(
    ("is_reachable", "script", "told"),
    [
        (True, "", [False, True]),
        (False, "", [False]),
        (True, "-" * (FAILURES - 1) + "+" + "-" * (FAILURES - 1), [False, True]),
        (True, "-" * FAILURES, [False, True, False]),
        (True, "-" * FAILURES + "+-" * 5, [False, True, False]),
        (True, "-" * FAILURES + "+" * ANSWERS, [False, True, False, True]),
        (False, "-" * 10 + "+" * (ANSWERS - 1), [False]),
        (False, "+" * ANSWERS, [False, True]),
    ],
)
async def test_only_answers_in_a_row_change_the_verdict(is_reachable: bool, script: str, told: list[bool]) -> None:
    assert await told_by(Answers(script, is_reachable=is_reachable)) == told


async def test_a_store_that_was_away_is_asked_anew_what_it_is() -> None:
    store = Answers("+-++", is_reachable=True)
    await told_by(store)
    assert store.asked == ["ping", "ping", "probe", "ping"]


async def test_an_answer_may_take_as_long_as_any_setting_lets_it() -> None:
    store = Answers("+-+", is_reachable=True)
    await told_by(store)
    [longest] = [bound.le for bound in Settings.model_fields["store_timeout"].metadata if hasattr(bound, "le")]
    assert min(store.budgets) >= longest.total_seconds()


@pytest.mark.parametrize(
    ("is_reachable", "script", "told"),
    [
        (True, "-" * (FAILURES - 1) + "+", []),
        (True, "-" * FAILURES * 3, ["REFUSED away"]),
        (True, "-" * FAILURES + "!" * 5 + "-" * 5, ["REFUSED away", "STORE no password", "REFUSED away"]),
        (True, "-" * FAILURES + "+" * ANSWERS + "-" * FAILURES, ["REFUSED away", "REFUSED away"]),
        (True, "-" * FAILURES + "+-", ["REFUSED away"]),
        (False, "!" * 5, ["STORE no password"]),
    ],
)
async def test_the_log_tells_why_it_is_not_ready_and_when_that_changes(
    is_reachable: bool, script: str, told: list[str]
) -> None:
    with structlog.testing.capture_logs() as logged:
        await told_by(Answers(script, is_reachable=is_reachable))
    warnings = [one for one in logged if one["log_level"] == "warning"]
    assert [f"{one['cause']} {one['error']}" for one in warnings] == told
    assert all("not ready" in one["event"] for one in warnings)


async def test_it_ends_when_told() -> None:
    readiness = Readiness(cast(Store, Answers("", is_reachable=True)), every_s=3600)
    running = asyncio.create_task(readiness.run())
    await asyncio.sleep(0)
    readiness.stop()
    async with asyncio.timeout(5):
        await running
