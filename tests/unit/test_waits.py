"""What a process keeps of queues on which nobody waits any more: nothing."""

from __future__ import annotations

from typing import Any, cast

from harness import eventually
from headwayd.domain.model import GetOrder
from headwayd.engine.consumers import Consumers
from headwayd.engine.ports import GetStep, Store, Wait
from headwayd.engine.tasks import Tasks

BUDGET_S = 2.0


class Draining:
    """A store of queues in each of which somebody else's leases are waited for."""

    quiet_at_once = 1

    def __init__(self) -> None:
        self.armed: list[tuple[str, bool]] = []
        self.wait = Wait.DRAIN

    async def get(self, _order: GetOrder, **_how: Any) -> GetStep:
        return GetStep((), (), wait=self.wait)

    async def arm(self, queue: str, *, until_drained: bool) -> bool:
        self.armed.append((queue, until_drained))
        return False

    async def find_quiet(self, queues: Any) -> Any:
        return queues


def order(queue: str) -> GetOrder:
    return GetOrder(queue=queue, lease_ms=1_000)


async def test_of_gets_that_do_not_wait_nothing_is_kept(tasks: Tasks) -> None:
    consumers = Consumers(cast(Store, Draining()), tasks.spawn, process="p")
    for wait in (Wait.EMPTY, Wait.DRAIN):
        consumers.store.wait = wait  # type: ignore[attr-defined]
        for number in range(1_000):
            consumer = consumers.enter(order(f"q{number}"), budget_s=BUDGET_S, waits=False)
            await consumers.first_try(consumer, BUDGET_S)
    assert not kept(consumers)


async def test_of_who_went_away_before_it_stood_in_line_nothing_is_kept(tasks: Tasks) -> None:
    consumers = Consumers(cast(Store, Draining()), tasks.spawn, process="p")
    await consumers.first_try(consumers.enter(order("q"), budget_s=BUDGET_S, waits=True), BUDGET_S)
    assert not kept(consumers)


async def test_whose_end_is_waited_for_is_known_as_long_as_somebody_stands_there(tasks: Tasks) -> None:
    store = Draining()
    consumers = Consumers(cast(Store, store), tasks.spawn, process="p")
    consumer = consumers.enter(order("q"), budget_s=BUDGET_S, waits=True)
    await consumers.first_try(consumer, BUDGET_S)
    line = consumers.join(consumer, has_tried=True)
    await eventually(lambda: store.armed == [("q", True)])
    store.wait = Wait.EMPTY
    line.kick()
    await eventually(lambda: store.armed[1:] == [("q", False)])
    await line.leave(consumer)
    await eventually(lambda: not kept(consumers))


def kept(consumers: Consumers) -> list[str]:
    """Whatever is kept by queue."""
    return [queue for value in vars(consumers).values() if isinstance(value, dict | set) for queue in value]
