"""When the event loop looks for calls now and then: where many come and cores are short."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from headwayd.rpc.core import pacing
from headwayd.rpc.core.completions import Completions
from headwayd.rpc.core.pacing import Pacing
from headwayd.rpc.core.server import Server
from unit.rpc.scheduler import Scheduler

JUDGED_EVERY_S = 0.1


@pytest.mark.parametrize(
    ("ran_ms", "waited_ms", "calls", "pauses"),
    [
        (40, 20, 100, True),
        (40, 20, 71, True),
        (40, 20, 69, False),  # callers who wait for each other's answers
        (40, 11, 100, True),
        (40, 9, 100, False),  # cores are free
        (0, 0, 100, False),  # a kernel that does not count
    ],
)
def test_it_pauses_where_many_come_and_cores_are_short(
    scheduler: Scheduler, ran_ms: float, waited_ms: float, calls: int, pauses: bool
) -> None:
    judge = Pacing(lambda: scheduler.now)
    assert not judge.pauses(0)
    scheduler.pass_by(ran_ms, waited_ms=waited_ms, seconds=JUDGED_EVERY_S)
    assert judge.pauses(calls) is pauses


def test_it_tells_of_the_last_tenth_of_a_second(scheduler: Scheduler) -> None:
    judge = Pacing(lambda: scheduler.now)
    begun = 0
    for waited_ms, calls in ((20, 100), (20, 0), (20, 100), (0, 100), (20, 100)):
        begun += calls
        scheduler.pass_by(40, waited_ms=waited_ms, seconds=JUDGED_EVERY_S)
        assert judge.pauses(begun) is bool(waited_ms and calls)
        begun += 1
        scheduler.pass_by(1, waited_ms=1 if calls else 80, seconds=JUDGED_EVERY_S / 10)
        assert judge.pauses(begun) is bool(waited_ms and calls), "too soon to judge again"


def test_a_time_without_a_judgement_is_no_time_of_need(scheduler: Scheduler) -> None:
    judge = Pacing(lambda: scheduler.now)
    scheduler.pass_by(40, waited_ms=20, seconds=JUDGED_EVERY_S)
    assert judge.pauses(100)
    scheduler.pass_by(40, waited_ms=20, seconds=10)
    assert not judge.pauses(200), "ten a second"


def test_a_kernel_that_does_not_tell_has_it_told_of_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pacing, "_SCHEDSTAT", tmp_path / "none")
    judge = Pacing(itertools.count().__next__)
    assert not judge.pauses(10**6)


class Loop:
    """The event loop that runs, and how often another thread woke it."""

    def __init__(self) -> None:
        self.woken = 0
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> object:
        return getattr(self._loop, name)

    def call_soon_threadsafe(self, *args: Any, **more: Any) -> object:
        self.woken += 1
        return self._loop.call_soon_threadsafe(*args, **more)


async def served(pauses: Callable[[int], bool], calls: int) -> int:
    """So many calls, one by one, are answered. How often the loop was woken for them."""

    async def echo(request: bytes, _context: object) -> bytes:
        return request

    class Router(grpc.GenericRpcHandler):
        def service(self, _handler_call_details: grpc.HandlerCallDetails) -> Any:
            return grpc.unary_unary_rpc_method_handler(echo)

    completions = Completions(pauses)
    loop = Loop()
    completions.loop = cast("asyncio.AbstractEventLoop", loop)
    server = Server(completions)
    server.add_generic_rpc_handlers((Router(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call: Any = channel.unary_unary("/a.Service/Echo")
            for number in range(calls):
                request = b"%d" % number
                assert await call(request, timeout=10) == request
            return loop.woken
    finally:
        await server.stop(None)
        completions.close()


async def test_it_is_told_how_many_calls_have_begun() -> None:
    heard: list[int] = []

    def pauses(calls: int) -> bool:
        heard.append(calls)
        return False

    await served(pauses, 20)
    assert heard == sorted(heard)
    assert heard[-1] in {20, 21}  # and the server


async def test_while_it_pauses_nobody_wakes_it_and_then_somebody_does_again() -> None:
    assert await served(lambda _calls: True, 50) == 1, "for the first"
    assert await served(lambda _calls: False, 50) >= 25
    half = 20
    assert 1 < await served(lambda calls: calls < half, 50) < 45
