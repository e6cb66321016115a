"""Puts that go to the store together: each has its own answer, as if it had come alone. And Puts that wait for room and
are just being tried when that ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from harness import eventually
from headwayd.domain.bare import BareMessages
from headwayd.domain.blocked import BlockedPut
from headwayd.domain.errors import (
    HeadwayError,
    OutcomeUnknown,
    QueueDeleted,
    QueueFull,
    RoleInUse,
    ShuttingDown,
    StoreUnavailable,
)
from headwayd.domain.model import NewMessage, PutCode, PutOrder, PutOutcome, refused
from headwayd.engine.leaving import ON_ITS_WAY_S
from headwayd.engine.lines import Lines
from headwayd.engine.ports import PutStep, Store, Wait
from headwayd.engine.putting import Putting
from headwayd.engine.tasks import Tasks

BUDGET_S = 2.0
BEFORE = PutOrder("jobs", BareMessages([b"before"]))  # on its way alone when the others come
PLAIN = PutOrder("jobs", BareMessages([b"plain"]))
NEEDS_ROOM = PutOrder("jobs", [NewMessage(b"unknown", id="unknown")])
DELAYED = PutOrder("jobs", [NewMessage(b"delayed", delay_ms=1_000)])
KNOWN = PutOrder("jobs", [NewMessage(b"known", id="known")])


class FullStore:
    """A queue without room, if it is not given some, which knows one id. Answers when it is let."""

    def __init__(self) -> None:
        self.steps: list[list[bytes]] = []  # the payloads of each
        self.budgets: list[float] = []
        self.line: list[bytes] = []  # the first payload of each who has come to stand there
        self.standing: set[str] = set()  # the names of those who do
        self.answered_at = self.left_at = 0.0
        self.wait = Wait.ROOM
        self.room = 0
        self.trouble: HeadwayError | None = None
        self.cut_by: HeadwayError | None = None  # of what is put in several steps, when the first is done
        self.goes_on = asyncio.Event()
        self.put_back = 0  # how often those who stand there were
        self.puts_back = asyncio.Event()  # that goes on, too
        self.puts_back.set()
        self.left = 0  # how often one was told to leave
        self.goes_on_with: dict[bytes, asyncio.Event] = {}  # by its first payload

    async def put(
        self,
        _queue: str,
        messages: Sequence[NewMessage],
        *,
        waiter: str,
        line_ticket: int,
        budget_s: float,
        **_fields: Any,
    ) -> PutStep:
        """As put.lua does, up to the first message that needs room."""
        self.steps.append([message.payload for message in messages])
        self.budgets.append(budget_s)
        await self.goes_on_with.get(messages[0].payload, self.goes_on).wait()
        self.answered_at = asyncio.get_running_loop().time()
        if self.trouble is not None:
            raise self.trouble
        outcomes: list[PutOutcome] = []
        if self.cut_by is not None:
            outcomes = [PutOutcome(PutCode.KEPT, messages[0].id), *refused(messages[1:], self.cut_by)]
            return PutStep(outcomes, Wait.MORE, line_ticket)
        for message in messages:
            if self.room:
                self.room -= 1
                outcomes.append(PutOutcome(PutCode.QUEUED, message.id))
                continue
            if self.wait is Wait.ROLE or not (message.delay_ms or message.id == "known"):
                if waiter and not line_ticket:
                    self.line.append(messages[0].payload)
                    line_ticket = len(self.line)
                self.standing.add(waiter)
                return PutStep(outcomes, self.wait, line_ticket, holder="a foreign client", bound=1)
            outcomes.append(PutOutcome(PutCode.DELAYED if message.delay_ms else PutCode.KEPT, message.id))
        return PutStep(outcomes)

    async def blocked(self, _queue: str, _producers: object, *, again: Sequence[BlockedPut], budget_s: float) -> None:
        """They stand there again."""
        del budget_s
        self.put_back += 1
        await self.puts_back.wait()
        self.standing.update(one.waiter for one in again)

    async def leave_line(self, _queue: str, waiter: str, *, budget_s: float) -> None:
        """It stands there no more."""
        self.left += 1
        self.standing.discard(waiter)
        self.left_at = asyncio.get_running_loop().time()


@pytest.fixture
def store() -> FullStore:
    """Does nothing until it is let."""
    return FullStore()


@pytest.fixture
def lines(tasks: Tasks) -> Lines:
    """Those who wait for room."""

    async def arm(_queue: str) -> bool:
        return False

    return Lines(arm, tasks.spawn, kind="producers")


@pytest.fixture
def putting(store: FullStore, lines: Lines, tasks: Tasks) -> Putting:
    """Puts there."""
    return Putting(cast(Store, store), lines, tasks.spawn, process="here")


async def begun(putting: Putting, store: FullStore, *orders: PutOrder) -> list[asyncio.Task[Sequence[PutOutcome]]]:
    """All of them came while a step was on its way, which is then let go on."""
    calls = []
    for order in (BEFORE, *orders):
        calls.append(asyncio.create_task(putting.put(order, budget_s=BUDGET_S)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    store.goes_on.set()
    return calls[1:]


async def together(putting: Putting, store: FullStore, *orders: PutOrder) -> list[Any]:
    """What each is told, or the error: all of them came while a step was on its way."""
    answers = await asyncio.gather(*await begun(putting, store, *orders), return_exceptions=True)
    assert store.steps[:2] == [[b"before"], [message.payload for order in orders for message in order.messages]]
    return answers


def codes(answer: Sequence[PutOutcome]) -> list[PutCode]:
    return [outcome.code for outcome in answer]


@pytest.mark.parametrize("wait_ms", [0, 60_000])
async def test_who_needs_no_room_is_put_though_it_came_with_one_that_found_none(
    putting: Putting, store: FullStore, wait_ms: int
) -> None:
    delayed, known = (order._replace(wait_ms=wait_ms) for order in (DELAYED, KNOWN))
    full, first, second = await together(putting, store, PLAIN, delayed, known)
    assert isinstance(full, QueueFull)
    assert codes(first) == [PutCode.DELAYED]
    assert codes(second) == [PutCode.KEPT]
    assert store.steps[2:] == [[b"delayed"], [b"known"]]


async def test_it_has_the_rest_of_its_own_time_for_that(putting: Putting, store: FullStore) -> None:
    await together(putting, store, PLAIN, KNOWN)
    assert 0 < store.budgets[2] < BUDGET_S


async def test_it_does_not_stand_in_line_before_those_that_came_before(putting: Putting, store: FullStore) -> None:
    orders = [PLAIN] * 5 + [NEEDS_ROOM]
    calls = await begun(putting, store, *(order._replace(wait_ms=60_000) for order in orders))
    await eventually(lambda: len(store.line) == len(orders))
    assert store.line == [b"plain"] * 5 + [b"unknown"]
    for one in calls:
        one.cancel()
    await asyncio.wait(calls)


async def test_as_far_as_it_needs_none(putting: Putting, store: FullStore) -> None:
    mixed = DELAYED._replace(messages=[*DELAYED.messages, NewMessage(b"now")])
    _, answer = await together(putting, store, PLAIN, mixed)
    assert codes(answer) == [PutCode.DELAYED, PutCode.REFUSED]
    assert isinstance(answer[1].error, QueueFull)


async def test_who_needs_room_for_certain_is_not_put_once_more(putting: Putting, store: FullStore) -> None:
    with_headers = PLAIN._replace(messages=[NewMessage(b"headers", headers=b"h", time_to_live_ms=1)])
    answers = await together(putting, store, PLAIN, PLAIN, with_headers)
    assert [type(answer) for answer in answers] == [QueueFull] * 3
    assert len(store.steps) == 2


async def test_nor_who_was_looked_at_and_found_none_itself(putting: Putting, store: FullStore) -> None:
    mixed = DELAYED._replace(messages=[*DELAYED.messages, NewMessage(b"now", id="now")])
    first, second = await together(putting, store, KNOWN, NEEDS_ROOM)
    assert codes(first) == [PutCode.KEPT]
    assert isinstance(second, QueueFull)
    assert len(store.steps) == 2
    answer = await putting.put(mixed, budget_s=BUDGET_S)
    assert codes(answer) == [PutCode.DELAYED, PutCode.REFUSED]
    assert len(store.steps) == 3


async def test_nor_anybody_while_a_foreign_client_has_the_role(putting: Putting, store: FullStore) -> None:
    store.wait = Wait.ROLE
    answers = await together(putting, store, PLAIN, DELAYED, KNOWN)
    assert [type(answer) for answer in answers] == [RoleInUse] * 3
    assert len(store.steps) == 2


# -- who waits, and is just being tried ------------------------------------------------------------------------------


async def tried(putting: Putting, lines: Lines, store: FullStore) -> asyncio.Task[Sequence[PutOutcome]]:
    """A Put of two that waits for room, while a try of it is on its way."""
    store.goes_on.set()
    order = PLAIN._replace(messages=BareMessages([b"first", b"second"]), wait_ms=60_000)
    call = asyncio.create_task(putting.put(order, budget_s=BUDGET_S))
    await eventually(lambda: store.line and lines.idle_on("jobs"))
    store.goes_on.clear()
    count = len(store.steps)
    lines.kick("jobs")
    await eventually(lambda: len(store.steps) > count)
    return call


async def all_heard() -> None:
    """Returns when what follows at once from what was done last has been done."""
    for _ in range(10):
        await asyncio.sleep(0)


async def drained(putting: Putting, lines: Lines, store: FullStore) -> asyncio.Task[Sequence[PutOutcome]]:
    """It, when the process goes down meanwhile."""
    call = await tried(putting, lines, store)
    lines.fail_all(ShuttingDown("going down"))
    await all_heard()
    return call


async def test_what_is_put_while_the_process_goes_down_is_told_as_put(
    putting: Putting, lines: Lines, store: FullStore
) -> None:
    call = await drained(putting, lines, store)
    store.room = 2
    store.goes_on.set()
    assert codes(await call) == [PutCode.QUEUED] * 2


async def test_a_part_that_is_put_while_the_process_goes_down_too(
    putting: Putting, lines: Lines, store: FullStore
) -> None:
    call = await drained(putting, lines, store)
    store.room = 1
    store.goes_on.set()
    answer = await call
    assert codes(answer) == [PutCode.QUEUED, PutCode.REFUSED]
    assert isinstance(answer[1].error, ShuttingDown)


async def test_what_finds_no_room_while_the_process_goes_down_is_told_that(
    putting: Putting, lines: Lines, store: FullStore
) -> None:
    call = await drained(putting, lines, store)
    store.goes_on.set()
    with pytest.raises(ShuttingDown):
        await call


@pytest.mark.parametrize("error", [OutcomeUnknown("silent"), QueueDeleted.of("jobs")], ids=lambda one: one.reason.name)
async def test_what_a_try_meets_while_the_process_goes_down_is_told(
    putting: Putting, lines: Lines, store: FullStore, error: HeadwayError
) -> None:
    call = await drained(putting, lines, store)
    store.trouble = error
    store.goes_on.set()
    with pytest.raises(type(error)):
        await call


async def gone(call: asyncio.Task[Sequence[PutOutcome]], store: FullStore) -> None:
    """Its caller has gone away, and then the try has ended."""
    call.cancel()
    await asyncio.wait({call})
    await all_heard()
    began = asyncio.get_running_loop().time()
    store.goes_on.set()
    await eventually(lambda: store.answered_at >= began)


async def test_who_goes_away_while_it_is_tried_does_not_stand_in_line_by_that(
    putting: Putting, lines: Lines, store: FullStore
) -> None:
    await gone(await tried(putting, lines, store), store)
    await eventually(lambda: "here#1" not in store.standing)


async def test_nor_by_a_try_of_which_nothing_is_known(putting: Putting, lines: Lines, store: FullStore) -> None:
    call = await tried(putting, lines, store)
    store.trouble = OutcomeUnknown("silent")
    await gone(call, store)
    await eventually(lambda: store.left_at >= store.answered_at + ON_ITS_WAY_S)


async def test_who_is_cut_off_between_two_steps_does_not_stand_in_line_any_more(
    putting: Putting, lines: Lines, store: FullStore
) -> None:
    call = await tried(putting, lines, store)
    assert "here#1" in store.standing
    store.cut_by = StoreUnavailable("nobody answers", metadata={"cause": "SILENT"})
    store.goes_on.set()
    assert codes(await call) == [PutCode.KEPT, PutCode.REFUSED]
    await eventually(lambda: "here#1" not in store.standing)


@pytest.mark.parametrize("is_first", [False, True], ids=["later", "first"])
@pytest.mark.parametrize("goes_away", [False, True], ids=["", "goes away"])
async def test_nor_by_a_step_of_which_nothing_is_known(
    putting: Putting, lines: Lines, store: FullStore, *, is_first: bool, goes_away: bool
) -> None:
    if is_first:
        order = KNOWN._replace(messages=[*KNOWN.messages, *KNOWN.messages], all_or_nothing=True, wait_ms=60_000)
        call = asyncio.create_task(putting.put(order, budget_s=BUDGET_S))
        await eventually(lambda: store.steps)
    else:
        call = await tried(putting, lines, store)
    store.cut_by = OutcomeUnknown("silent")
    if goes_away:
        await gone(call, store)
    else:
        store.goes_on.set()
        assert codes(await call) == [PutCode.KEPT, PutCode.REFUSED]
    await eventually(lambda: store.left_at >= store.answered_at + ON_ITS_WAY_S)


async def test_who_is_served_is_told_though_another_that_is_tried_with_it_is_not_yet(
    putting: Putting, lines: Lines, store: FullStore
) -> None:
    store.goes_on.set()
    orders = [PLAIN._replace(messages=BareMessages([one]), wait_ms=60_000) for one in (b"1", b"2", b"3")]
    calls = [asyncio.create_task(putting.put(order, budget_s=BUDGET_S)) for order in orders]
    await eventually(lambda: len(store.line) == len(lines.idle_on("jobs")) == len(orders))
    held = store.goes_on_with[b"3"] = asyncio.Event()
    store.room = 2
    lines.kick("jobs")  # the first by itself, and then the others together
    await eventually(lambda: calls[0].done() and calls[1].done())
    assert not calls[2].done()
    store.room = 1
    held.set()
    assert [codes(await call) for call in calls] == [[PutCode.QUEUED]] * 3


def restore(putting: Putting) -> None:
    """As after a reconnect."""
    for wake in putting.restores():
        wake()


async def waiting(putting: Putting, store: FullStore) -> asyncio.Task[Sequence[PutOutcome]]:
    """A Put that waits in line, as here#1."""
    store.goes_on.set()
    call = asyncio.create_task(putting.put(PLAIN._replace(wait_ms=60_000), budget_s=BUDGET_S))
    await eventually(lambda: "here#1" in store.standing)
    return call


async def test_however_often_it_was_put_back_in_line_it_leaves_once(
    putting: Putting, store: FullStore, lines: Lines, tasks: Tasks
) -> None:
    call = await waiting(putting, store)
    for times in range(1, 6):
        restore(putting)
        await eventually(lambda: store.put_back == times)  # noqa: B023 - it is called here only
    store.room = 1
    lines.kick("jobs")
    assert codes(await call) == [PutCode.QUEUED]
    await tasks.drain(60)
    assert store.left == 1
    assert "here#1" not in store.standing


async def test_who_is_served_while_it_is_put_back_in_line_once_more_does_not_stay_there(
    putting: Putting, store: FullStore, lines: Lines, tasks: Tasks
) -> None:
    call = await waiting(putting, store)
    restore(putting)
    await eventually(lambda: store.put_back == 1)
    store.puts_back.clear()
    restore(putting)
    await eventually(lambda: store.put_back == 2)
    store.room = 1
    lines.kick("jobs")
    assert codes(await call) == [PutCode.QUEUED]
    await eventually(lambda: store.left == 1)
    store.puts_back.set()
    await tasks.drain(60)
    assert "here#1" not in store.standing
