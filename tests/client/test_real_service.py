"""The client and the command line with a real service: the calls for a whole life of a message, and lost answers."""

import asyncio
import json
import random
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

import headway
from client.conftest import CommandLine
from docs.blocks import ROOT, blocks_of
from harness import FaultProxy, ServiceProcess, StoreServer, eventually
from headway.core.error import from_status
from headway.v1.message_pb2 import Settled

PATIENCE_SECONDS = 60
CUT_SPAN = timedelta(seconds=10)  # of a lease; the default policy's is longer


@pytest_asyncio.fixture
async def line(real: ServiceProcess) -> AsyncIterator[headway.Queue]:
    """A queue of the real service, on which a message is dead after its first failure."""
    async with headway.connect(real.address) as client:
        queue = client.queue("life")
        await queue.create(max_attempts=1)
        yield queue


@pytest_asyncio.fixture
async def shell(real: ServiceProcess) -> AsyncIterator[CommandLine]:
    runs = CommandLine(real.address)
    yield runs
    for process in runs.started:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def _bury(queue: headway.Queue, count: int) -> None:
    """Puts messages and lets them die."""
    await queue.put_many([headway.Message(id=f"d{n}", payload=b"%d" % n) for n in range(count)])
    for each in (await queue.get(count)).deliveries:
        await queue.delay([each.lease], reason="it broke")


async def test_messages_are_postponed_withdrawn_and_replaced(line: headway.Queue) -> None:
    await line.put(b"held", id="held")
    held = await line.get()
    await line.put_many([headway.Message(id=name, payload=name.encode()) for name in "abc"])
    postponed = await line.postpone(["a", "held", "nobody"], timedelta(hours=1))
    assert [each.settled for each in postponed] == [
        Settled.SETTLED_DELAYED,
        Settled.SETTLED_STALE,
        Settled.SETTLED_GONE,
    ]
    results = await line.withdraw(["a", "b", "held", "nobody"])
    assert [each.withdrawn for each in results] == [True, True, False, False]
    assert [type(from_status(each.error)) for each in results[2:]] == [headway.MessageLeased, headway.MessageNotFound]
    late = from_status((await line.withdraw(["b"]))[0].error)
    assert isinstance(late, headway.MessageFinished)
    assert late.outcome == "WITHDRAWN"
    assert (await line.put(b"new", id="c", on_duplicate="replace")).position == 1
    assert (await line.put(b"other", id="c", on_duplicate="keep")).body_differs
    assert [each.message.payload for each in await line.peek(5)] == [b"new"]
    await line.put(b"again", id="held", on_duplicate="replace")
    assert (await line.ack([held.deliveries[0].lease]))[0].settled == Settled.SETTLED_STALE
    assert not (await line.check()).findings


async def test_expired_message_goes_to_the_dead_if_the_policy_says_so(line: headway.Queue) -> None:
    await line.update(dead_letter_expired=True)
    await line.put(b"x", id="old", time_to_live=timedelta(milliseconds=1))

    async def is_dead() -> bool:
        assert not (await line.get()).deliveries
        return [(dead.message.id, dead.cause) async for dead in line.dead()] == [("old", "expired")]

    await eventually(is_dead)
    assert not (await line.check()).findings


async def test_dead_are_listed_and_put_back(line: headway.Queue) -> None:
    await _bury(line, 3)
    told = [(dead.message.id, dead.failures, dead.cause, dead.last_error) async for dead in line.dead()]
    assert told == [(f"d{n}", 1, "attempts", "it broke") for n in range(3)]
    named = [each async for each in line.redrive(["d1", "nobody"])]
    assert (named[-1].redriven, list(named[-1].not_found_ids)) == (1, ["nobody"])
    other = line.client.queue("other")
    await other.create()
    rest = [(each.redriven, each.remaining) async for each in line.redrive(to_queue="other", rate=1000)]
    assert rest[-1] == (2, 0)
    assert [each.message.id for each in await other.peek(5)] == ["d0", "d2"]
    assert [each.message.id for each in await line.peek(5)] == ["d1"]
    assert [dead async for dead in line.dead()] == []
    assert not (await line.check()).findings
    assert not (await other.check()).findings


async def test_redrive_that_is_left_can_be_finished(line: headway.Queue) -> None:
    await _bury(line, 20)
    task = asyncio.create_task(_redrive_slowly(line))
    await eventually(lambda: _has_length(line, at_least=1))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    last = [each async for each in line.redrive()][-1]
    assert last.remaining == 0
    assert (await line.describe()).counts.length == 20
    assert not (await line.check()).findings


async def _redrive_slowly(queue: headway.Queue) -> None:
    async for _ in queue.redrive(rate=2):
        pass


async def _has_length(queue: headway.Queue, *, at_least: int) -> bool:
    return (await queue.describe()).counts.length >= at_least


async def test_results_of_handlers_are_taken(line: headway.Queue) -> None:
    await line.put_many([headway.Message(id=f"m{n}") for n in range(5)])
    await line.close()

    async def handle(lease: headway.Lease) -> bytes:
        return b"result of " + lease.id.encode()

    await line.run(handle, concurrency=2)
    assert (await line.describe()).counts.acked == 5


async def test_result_that_is_too_large_is_the_messages_failure(line: headway.Queue) -> None:
    await line.put(b"x", id="big")
    stop = asyncio.Event()

    async def handle(lease: headway.Lease) -> bytes:
        stop.set()
        return b"x" * 4097

    await line.run(handle, stop=stop)
    assert [dead.last_error async for dead in line.dead()] == ["headway.core.errors.TooLarge"]


async def test_shell_goes_through_the_life_of_a_message(shell: CommandLine) -> None:
    assert (await shell.run("create", "mail", "--max-attempts", "1", "--ttl", "1h", "--dead-letter-expired")).code == 0
    for name in ("a", "b", "c"):
        assert (await shell.run("put", "mail", f"to {name}", "--id", name, "--ttl", "2h")).code == 0
    assert b"a: joins the line at" in (await shell.run("postpone", "mail", "a", "--delay", "1h")).out
    assert (await shell.run("withdraw", "mail", "a", "b")).out == b"a: withdrawn\nb: withdrawn\n"
    assert (await shell.run("withdraw", "mail", "b")).code == 4
    failed = await shell.run("work", "mail", "--drain", "--", "false")
    assert failed.code == 0
    shown = (await shell.run("dead", "mail")).out.decode()
    assert all(part in shown for part in ("c", "attempts", "exit status 1", "to c"))
    assert (await shell.run("redrive", "mail", "--all")).out == b"put back 1 messages\n"
    got = json.loads((await shell.run("--json", "get", "mail")).out)
    assert (await shell.run("ack", "mail", "--result", "done", "--", got["lease"])).code == 0
    assert (await shell.run("withdraw", "mail", "c")).code == 4
    assert (await shell.run("update", "mail", "--default", "time-to-live", "--bound", "5")).code == 0
    checked = await shell.run("check", "mail")
    assert (checked.code, checked.out) == (0, b""), checked.out


Look = Callable[[headway.Lease], Awaitable[None]]


async def _run(queue: headway.Queue, look: Look, by: Any) -> None:
    await queue.run(look, by=by)


async def _iterate(queue: headway.Queue, look: Look, by: Any) -> None:
    async for lease in queue.work(by=by):
        async with lease:
            await look(lease)


async def _lease(queue: headway.Queue, look: Look) -> None:
    with suppress(headway.QueueDrained):
        while True:
            async with queue.lease() as lease:
                assert lease is not None
                await look(lease)


async def _stand(queue: headway.Queue, look: Look) -> None:
    async with queue.stand(keep_standing=True) as stand:
        while turn := await stand.turn():
            for lease in turn:
                await look(lease)
                await lease.ack()


WAYS_TO_LEASE: dict[str, Callable[[headway.Queue, Look], Awaitable[None]]] = {
    "run-stream": partial(_run, by="stream"),
    "run-calls": partial(_run, by="calls"),
    "work-stream": partial(_iterate, by="stream"),
    "work-calls": partial(_iterate, by="calls"),
    "lease": _lease,
    "stand": _stand,
}


@pytest.mark.parametrize("way", WAYS_TO_LEASE)
async def test_lease_by_the_policy_is_cut_to_what_the_operator_lets_one_last(
    fresh_store_server: StoreServer, make_service: Callable[..., ServiceProcess], way: str
) -> None:
    limited = make_service(HEADWAY_REDIS_URL=fresh_store_server.url, HEADWAY_MAX_LEASE="10s")
    async with asyncio.timeout(PATIENCE_SECONDS), headway.connect(limited.address) as client:
        queue = client.queue("short")
        await queue.create()
        await queue.put(b"1")
        await queue.close()
        spans: list[timedelta] = []

        async def look(lease: headway.Lease) -> None:
            spans.append(lease.span)

        await WAYS_TO_LEASE[way](queue, look)
        assert spans == [CUT_SPAN]
        assert (await queue.describe()).counts.acked == 1


@pytest.mark.parametrize("way", WAYS_TO_LEASE)
async def test_change_of_the_policys_lease_reaches_who_works_already(
    real: ServiceProcess, line: headway.Queue, way: str
) -> None:
    before, after = timedelta(minutes=10), timedelta(hours=1)
    await line.update(lease=before)
    await line.put(b"1")
    seen: list[tuple[timedelta, timedelta]] = []

    async def look(lease: headway.Lease) -> None:
        (told,) = await line.leased()
        seen.append((lease.span, told.lease_expires_at.ToDatetime() - told.leased_at.ToDatetime()))
        if len(seen) == 1:
            await line.update(lease=after)
            await line.put(b"2")
            await line.close()

    async with asyncio.timeout(PATIENCE_SECONDS), headway.connect(real.address) as client:
        await WAYS_TO_LEASE[way](client.queue("life"), look)
    assert seen == [(before, before), (after, after)]


async def _lease_for(queue: headway.Queue, span: timedelta) -> None:
    async with queue.lease(lease=span):
        pass


async def _extend_for(queue: headway.Queue, span: timedelta) -> None:
    async with queue.lease() as lease:
        assert lease is not None
        await lease.extend(span)


async def _run_for(queue: headway.Queue, span: timedelta, by: Any) -> None:
    async def handle(lease: headway.Lease) -> None:
        pass

    await queue.run(handle, lease=span, drain=True, by=by)


async def _iterate_for(queue: headway.Queue, span: timedelta, by: Any) -> None:
    async for lease in queue.work(lease=span, by=by):
        async with lease:
            break


WAYS_TO_NAME_A_SPAN: dict[str, Callable[[headway.Queue, timedelta], Awaitable[None]]] = {
    "lease": _lease_for,
    "extend": _extend_for,
    "run-stream": partial(_run_for, by="stream"),
    "run-calls": partial(_run_for, by="calls"),
    "work-stream": partial(_iterate_for, by="stream"),
    "work-calls": partial(_iterate_for, by="calls"),
}


@pytest.mark.parametrize("way", WAYS_TO_NAME_A_SPAN)
async def test_lease_of_no_length_is_refused(line: headway.Queue, way: str) -> None:
    await line.put(b"1")
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(headway.FieldInvalid, match="lease must be 100 ms to 12 h"):
            await WAYS_TO_NAME_A_SPAN[way](line, timedelta(0))


async def test_shell_sets_each_part_of_how_a_queue_is_polled(shell: CommandLine) -> None:
    parts = {"base": "2s", "per-position": "100ms", "max": "20s", "tolerance": "0", "strikes": "1"}
    options = [each for name, value in parts.items() for each in (f"--poll-{name}", value)]
    made = await shell.run("create", "polled", *options)
    assert made.code == 0, made.err
    changed = await shell.run("update", "polled", "--poll-per-position", "5s", "--default", "poll-strikes")
    assert (changed.code, changed.out) == (0, b"changed polled: poll_per_position, poll_strikes\n"), changed.err
    told = json.loads((await shell.run("--json", "describe", "polled")).out)["policy"]["poll"]
    assert told == {"base": "2s", "per_position": "5s", "max": "20s", "tolerance": "0s", "strikes": 3}


async def test_redrive_into_a_full_queue_answers_at_once_and_waits(line: headway.Queue) -> None:
    await _bury(line, 2)
    full = line.client.queue("full")
    await full.create(bound=1)
    await full.put(b"x")
    async with aclosing(line.redrive(to_queue="full")) as progress:
        async with asyncio.timeout(5):
            first = await anext(progress)
        assert (first.redriven, first.remaining) == (0, 2)
        for _ in range(2):
            await full.ack([(await full.get(wait=timedelta(seconds=5))).deliveries[0].lease])
        assert [each async for each in progress][-1].redriven == 2


async def test_guide_for_the_dead_does_what_it_says(line: headway.Queue, shell: CommandLine) -> None:
    text = next(block.text for block in blocks_of((ROOT / "docs/clients.md").read_text()) if block.is_run)
    mail, later = line.client.queue("mail"), line.client.queue("mail-later")
    await mail.create(max_attempts=1)
    await later.create()
    await mail.put_many([headway.Message(id=name) for name in ("welcome-ada", "welcome-grace")])
    for each in (await mail.get(2)).deliveries:
        await mail.delay([each.lease], reason="it broke")
    for command in text.splitlines():
        finished = await shell.run(*shlex.split(command, comments=True)[1:])
        assert finished.code == 0, command + finished.err
    assert [each.message.id for each in await mail.peek(5)] == ["welcome-ada"]
    assert [each.message.id for each in await later.peek(5)] == ["welcome-grace"]


@pytest.mark.parametrize("share", [0.1, 0.5])
async def test_no_message_is_worked_on_twice_for_a_lost_answer(
    real: ServiceProcess, line: headway.Queue, share: float
) -> None:
    """Answers are lost behind the service. No lease lapses here: one left behind would outlast the test."""
    async with losing_answers(real.address, share) as (address, _):
        await _work_all(line, address)


async def test_what_was_leased_while_no_answer_came_is_worked_on_when_they_do(
    real: ServiceProcess, line: headway.Queue
) -> None:
    await line.put_many([headway.Message(id=name) for name in "abcd"])
    await line.close()
    handled: list[tuple[str, int]] = []

    async def handle(lease: headway.Lease) -> None:
        handled.append((lease.id, lease.attempt))

    async with (
        losing_answers(real.address, 1.0) as (address, wire),
        headway.connect(address, call_timeout=timedelta(seconds=3)) as client,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(client.queue("life").run(handle, concurrency=4, lease=timedelta(hours=1), by="calls"))
        await eventually(lambda: _has_leased(line, 4), within=PATIENCE_SECONDS)
        assert not handled
        wire.share = 0.0
    assert sorted(handled) == [(name, 1) for name in "abcd"]
    assert (await line.describe()).counts.acked == 4


async def test_no_message_is_worked_on_twice_when_connections_break(real: ServiceProcess, line: headway.Queue) -> None:
    async with FaultProxy(int(real.address.rpartition(":")[2])) as wire:
        wire.drop_replies = 0.1
        await _work_all(line, f"127.0.0.1:{wire.port}", until=wire.restore)


async def _work_all(line: headway.Queue, address: str, *, until: Callable[[], None] = lambda: None) -> None:
    """Works on many messages over a bad wire, which gets better towards the end."""
    await line.update(max_attempts=0, lease=timedelta(hours=1))
    names = [f"m{number}" for number in range(30)]
    await line.put_many([headway.Message(id=name) for name in names])
    await line.close()
    handled: list[tuple[str, int]] = []

    async def handle(lease: headway.Lease) -> bytes | None:
        handled.append((lease.id, lease.attempt))
        return b"result" if len(handled) % 3 == 0 else None

    async def work() -> None:
        async with headway.connect(address, call_timeout=timedelta(seconds=3)) as client:
            await client.queue("life").run(handle, concurrency=2, by="calls")

    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(work())
        await eventually(lambda: _has_acked(line, 20), within=PATIENCE_SECONDS)
        until()
    assert sorted(handled) == sorted((name, 1) for name in names)
    counts = (await line.describe()).counts
    assert (counts.acked, counts.leased, counts.length) == (len(names), 0, 0)
    assert not (await line.check()).findings


async def _has_leased(queue: headway.Queue, count: int) -> bool:
    return (await queue.describe()).counts.leased == count


async def _has_acked(queue: headway.Queue, count: int) -> bool:
    return (await queue.describe()).counts.acked >= count


class _Forwarder(grpc.GenericRpcHandler):
    """Hands each call on to the service, and loses a share of the answers on their way back."""

    def __init__(self, upstream: grpc.aio.Channel, share: float) -> None:
        self._upstream = upstream
        self.share = share
        self._chance = random.Random(3)

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any]":
        call: Any = self._upstream.unary_unary(details.method)

        async def forward(request: bytes, context: Any) -> bytes:
            try:
                answer: bytes = await call(request, timeout=context.time_remaining())
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata() or ()))
                raise
            if self._chance.random() < self.share:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost")
            return answer

        return grpc.unary_unary_rpc_method_handler(forward)


@asynccontextmanager
async def losing_answers(address: str, share: float) -> AsyncIterator[tuple[str, _Forwarder]]:
    """An address whose answers are lost now and then, and what loses them."""
    async with grpc.aio.insecure_channel(address) as upstream:
        server = grpc.aio.server()
        wire = _Forwarder(upstream, share)
        server.add_generic_rpc_handlers((wire,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}", wire
        finally:
            await server.stop(None)
