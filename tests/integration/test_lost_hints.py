"""A hint may be lost: whoever waits is found all the same, and for very many who wait for nothing that costs little."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest

from harness import StoreServer, eventually
from headwayd.domain.errors import HeadwayError, QueueDeleted, QueueDrained
from headwayd.domain.model import GetOrder, Policy
from headwayd.engine import rounds
from headwayd.engine.consumers import Consumer, Consumers
from headwayd.engine.tasks import Tasks
from headwayd.store.address import parse_address
from headwayd.store.connections import ConnectionSource
from headwayd.store.hint_wire import HintWire
from integration.desk import BUDGET_S, Desk

QUEUES = 230  # more than one question's, of which there are two in a round
WITHIN_S = 20.0


@asynccontextmanager
async def waiting(desk: Desk, count: int) -> AsyncIterator[list[Consumer]]:
    """A consumer waits on each of so many queues, in a process that hears nothing."""
    tasks = Tasks()
    names = [f"{desk.name}-{n}" for n in range(count)]
    await desk.store.start()
    desk.store.on_hint(lambda _queue, _is_call: None)
    consumers = Consumers(desk.store, tasks.spawn, process="headway/exact/1/0")
    waiters = []
    try:
        for name in names:
            await desk.store.create(name, Policy(), budget_s=BUDGET_S)
            order = GetOrder(queue=name, max_messages=1, lease_ms=60_000, max_bytes=10**7)
            waiter = consumers.enter(order, budget_s=BUDGET_S, waits=True)
            assert not (await consumers.first_try(waiter, BUDGET_S)).deliveries
            consumers.join(waiter, has_tried=True)
            waiters.append(waiter)
        yield waiters
    finally:
        await tasks.close()
        for name in names:
            await desk.store.delete(name, budget_s=BUDGET_S)


class Asked:
    """How often the store was asked by this process: by scripts, and whether keys are there."""

    def __init__(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scripts = 0
        self.questions = 0
        desk.store.on_answer(self._note)
        watch = HintWire.watch

        async def counted(wire: HintWire, *groups: Iterable[str]) -> list[int] | None:
            self.questions += len(groups)
            return await watch(wire, *groups)

        monkeypatch.setattr(HintWire, "watch", counted)

    def _note(self, _script: str, _took_s: float) -> None:
        self.scripts += 1


@pytest.fixture
def asked(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(desk, monkeypatch)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "ROUND_S", 0.05)
    monkeypatch.setattr(rounds, "CHECK_S", 0.2)


@pytest.mark.usefixtures("soon")
async def test_of_many_who_wait_only_the_one_that_may_find_something_looks(
    desk: Desk, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "_CHECKS_A_LOOK", 10**6)
    await desk.create()
    async with waiting(desk, QUEUES) as waiters, asyncio.timeout(30):
        await asyncio.sleep(0.5)
        asked.scripts = asked.questions = 0
        await asyncio.sleep(1.0)
        assert asked.scripts == 0
        assert 2 <= asked.questions <= 2 * 2 * 20  # two for at most a hundred queues, in each of at most twenty rounds
        for n in (0, QUEUES - 1, QUEUES // 2):
            asked.scripts = 0
            await Desk(desk.store, desk.raw, f"{desk.name}-{n}").put(b"told to nobody")
            step = await waiters[n].given
            assert [delivery.payload for delivery in step.deliveries] == [b"told to nobody"]
            assert asked.scripts == 2  # the put, and the look
        assert not any(waiter.given.done() for waiter in itertools.islice(waiters, 1, QUEUES // 2))


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("error", [QueueDrained, QueueDeleted])
async def test_the_end_of_a_queue_is_found_on_that_queue_alone(desk: Desk, error: type[HeadwayError]) -> None:
    await desk.create()
    async with waiting(desk, 3) as waiters, asyncio.timeout(30):
        elsewhere = Desk(desk.store, desk.raw, f"{desk.name}-1")
        if error is QueueDrained:
            await desk.store.close_queue(elsewhere.name, budget_s=BUDGET_S)
        else:
            await desk.store.delete(elsewhere.name, budget_s=BUDGET_S)
        with pytest.raises(error):
            await waiters[1].given
        assert not waiters[0].given.done()
        assert not waiters[2].given.done()
        if error is QueueDeleted:
            await elsewhere.create()


@pytest.mark.usefixtures("soon")
async def test_where_a_foreign_client_has_a_role_is_looked(desk: Desk, asked: Asked) -> None:
    await desk.create()
    async with waiting(desk, 3), asyncio.timeout(30):
        elsewhere = Desk(desk.store, desk.raw, f"{desk.name}-1")
        asked.scripts = 0
        elsewhere.raw.rpop(elsewhere.key("producer_free"))
        await eventually(lambda: asked.scripts >= 3)
        elsewhere.raw.lpush(elsewhere.key("producer_free"), 0)


@pytest.mark.usefixtures("soon")
async def test_what_a_question_does_not_tell_a_rare_look_finds(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here that the store has lost who stands in line."""
    monkeypatch.setattr(rounds, "_CHECKS_A_LOOK", 2)
    await desk.create()
    async with waiting(desk, 1), asyncio.timeout(30):
        elsewhere = Desk(desk.store, desk.raw, f"{desk.name}-0")
        elsewhere.raw.delete(elsewhere.key("consumers"))
        await eventually(lambda: bool(elsewhere.raw.exists(elsewhere.key("consumers"))))


@pytest.mark.parametrize("defect_in", ["connect", "message"])
async def test_a_defect_of_who_is_told_leaves_no_process_deaf(store_server: StoreServer, defect_in: str) -> None:
    connects, heard = 0, list[bytes]()

    def on_connected() -> None:
        nonlocal connects
        connects += 1
        if (defect_in, connects) == ("connect", 1):
            raise LookupError("a defect")

    def on_message(_channel: bytes, content: bytes) -> None:
        heard.append(content)
        if (defect_in, content) == ("message", b"first"):
            raise LookupError("a defect")

    source = ConnectionSource(parse_address(store_server.url), call_timeout_s=BUDGET_S)
    wire = HintWire(
        source, channels=(b"told",), call_timeout_s=BUDGET_S, on_message=on_message, on_connected=on_connected
    )
    wire.start()
    try:
        with store_server.client() as client:

            async def is_heard(content: bytes) -> bool:
                client.publish("told", content)
                return content in heard

            if defect_in == "message":
                await eventually(lambda: is_heard(b"first"), within=WITHIN_S)
            await eventually(lambda: connects > 1, within=WITHIN_S)
            await eventually(lambda: is_heard(b"second"), within=WITHIN_S)
    finally:
        await wire.close()
