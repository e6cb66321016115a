"""Tokens that expire: what was served goes on with the token of now, once, and whoever is refused is told."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import grpc
import pytest

import headway
from client.fake_service import Failure, FakeQueue, FakeService
from headway.core import Worker

EXPIRED = Failure(code=grpc.StatusCode.UNAUTHENTICATED, reason="UNAUTHENTICATED")
SERVED_BEFORE = Failure(code=grpc.StatusCode.UNAUTHENTICATED, reason="UNAUTHENTICATED", is_after=True)
HALF_A_MINUTE = timedelta(seconds=30)
NO_HEADERS = ["a\nb", "a\x7fb", "caf\xe9", "\udc80"]


async def _ignore(lease: object) -> None:
    """A handler that has nothing to do."""


async def _watch(queue: headway.Queue) -> None:
    async with aclosing(queue.watch_queue()) as numbers:
        async for told in numbers:
            if told.queue.counts.length == 2:
                return


async def _stand(queue: headway.Queue) -> None:
    async with queue.stand(lease=HALF_A_MINUTE) as stand:
        await stand.turn()


async def _produce(queue: headway.Queue) -> None:
    async with queue.producer() as producer:
        for payload in (b"1", b"2"):
            await producer.put(payload)


# The method of the step that fails, how, what goes well before it, and what lasts until two messages are seen to.
LASTING: dict[str, tuple[str, Failure, list[Failure | None], Callable[[headway.Queue], Any]]] = {
    "run": ("Ack", EXPIRED, [], lambda queue: queue.run(_ignore)),
    "run by calls": ("Get", EXPIRED, [], lambda queue: queue.run(_ignore, by="calls")),
    "core": ("Get", EXPIRED, [], lambda queue: Worker(queue.client.connection, "q", _ignore).run()),
    "watch": ("WatchQueue", SERVED_BEFORE, [], _watch),
    "stand": ("WatchPosition", SERVED_BEFORE, [], _stand),
    "producer": ("Produce", EXPIRED, [None], _produce),
}


@pytest.mark.parametrize("name", LASTING)
@pytest.mark.parametrize("is_changed", [False, True], ids=["expired", "changed"])
async def test_what_was_served_goes_on_with_the_token_of_now(
    service: FakeService, queue: headway.Queue, made: FakeQueue, name: str, is_changed: bool
) -> None:
    method, failure, before, lasting = LASTING[name]
    if is_changed:
        failure = replace(failure, code=grpc.StatusCode.PERMISSION_DENIED, reason="PERMISSION_DENIED")
    service.failures[method] = [*before, failure]
    is_worker = name in {"run", "run by calls", "core"}
    if is_worker:
        await queue.put_many([b"1", b"2"])
        await queue.close()
    numbers = count()
    async with asyncio.timeout(30), headway.connect(service.address, token=lambda: str(next(numbers))) as client:
        task = asyncio.create_task(lasting(client.queue("q")))
        await service.wait_for(lambda: not service.failures[method])
        if not is_worker and name != "producer":
            await queue.put_many([b"1", b"2"])
        await task
    assert len(made.acked if is_worker else made.line + list(made.leased.values())) == 2


@pytest.mark.parametrize("name", LASTING)
async def test_who_is_refused_before_it_is_served_is_told_so(
    service: FakeService, queue: headway.Queue, made: FakeQueue, name: str
) -> None:
    method, _, _, lasting = LASTING[name]
    opening = "Consume" if name == "run" else method
    service.fail_next(opening, EXPIRED, times=2)
    await queue.put_many([b"1", b"2"])
    async with asyncio.timeout(30):
        with pytest.raises(headway.Unauthenticated):
            await lasting(queue)
    assert len(service.requests(opening)) == (2 if opening == "Get" else 1)


async def test_worker_whose_new_token_is_refused_ends(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put(b"1")
    service.failures = {"Ack": [EXPIRED, EXPIRED], "Consume": [None, EXPIRED]}
    async with asyncio.timeout(30):
        with pytest.raises(headway.Unauthenticated):
            await queue.run(_ignore)


@pytest.mark.parametrize("token", NO_HEADERS)
def test_token_that_no_header_can_hold_is_refused_before_a_call_and_not_told(token: str) -> None:
    with pytest.raises(ValueError, match="the token") as refused:
        headway.connect(token=token)
    assert token not in str(refused.value)


@pytest.mark.parametrize("token", NO_HEADERS)
async def test_token_of_now_that_no_header_can_hold_is_told_by_calls_and_streams(
    service: FakeService, made: FakeQueue, token: str
) -> None:
    async with asyncio.timeout(30), headway.connect(service.address, token=lambda: token) as client:
        for lasting in (client.server_info(), _watch(client.queue("q")), client.queue("q").run(_ignore)):
            with pytest.raises(ValueError, match="the token"):
                await lasting
