"""Answers of the store that never come, or are another call's: it is said so, and repeating is safe."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Awaitable, Callable

import grpc
import pytest
from google.protobuf.message import Message as ProtoMessage

from faults.table import ask, assert_unknown, requests
from faults.wires import STRAY, ReplyProxy
from harness import StoreServer, error_of, eventually
from headway.v1 import message_pb2, queue_pb2, queue_service_pb2
from wire.calls import UNAVAILABLE, Line, span

Losing = Callable[[str, ProtoMessage], Awaitable[None]]
KEEP = message_pb2.ON_DUPLICATE_KEEP
PRODUCERS, BATCHES, BATCH = 8, 15, 5


async def put_until_known(line: Line, ids: list[str], seen: dict[str, int]) -> None:
    """A producer as the protocol wants it: the same ids again until there is an answer."""
    messages = [message_pb2.Message(id=id_, payload=id_.encode()) for id_ in ids]
    for _ in range(200):
        try:
            answer = await line.put(*messages, on_duplicate=KEEP)
        except grpc.aio.AioRpcError as error:
            said = error_of(error)
            assert said.code is UNAVAILABLE, said
            seen[said.reason] = seen.get(said.reason, 0) + 1
        else:
            assert [result.id for result in answer.results if not result.error.code] == ids
            return
    raise AssertionError("not accepted in 200 tries")


@pytest.mark.parametrize(
    ("fault", "share"), [("drop_replies", 0.1), ("drop_replies", 0.5), ("reset_mid_reply", 0.3)], ids=str
)
async def test_a_producer_that_repeats_its_ids_has_every_message_stored_once(
    *, shaky: Line, line: Line, proxy: ReplyProxy, fault: str, share: float, figure: Callable[[str, str], None]
) -> None:
    await shaky.create(dedupe_window=span(600_000))
    seen: dict[str, int] = {}
    setattr(proxy, fault, share)

    async def produce(producer: int) -> None:
        for batch in range(BATCHES):
            await put_until_known(shaky, [f"{producer}-{batch}-{number}" for number in range(BATCH)], seen)

    await asyncio.gather(*(produce(producer) for producer in range(PRODUCERS)))
    assert seen.get("OUTCOME_UNKNOWN"), seen
    figure(f"answers lost at {share:.0%} {fault}", f"{seen}")
    total = PRODUCERS * BATCHES * BATCH
    taken = await line.take(total)
    ids = [delivery.message.id for delivery in taken]
    assert len(set(ids)) == total
    assert (await line.counts()).accepted == total
    for producer in range(PRODUCERS):  # one after the other, and so they stand
        mine = [id_ for id_ in ids if id_.startswith(f"{producer}-")]
        assert mine == [f"{producer}-{batch}-{number}" for batch in range(BATCHES) for number in range(BATCH)]


@pytest.mark.parametrize(("fault", "share"), [("drop_replies", 0.1), ("reset_mid_reply", 0.3)], ids=str)
async def test_consumers_behind_a_wire_that_loses_answers_still_get_every_message(
    shaky: Line, proxy: ReplyProxy, fault: str, share: float
) -> None:
    """A Get whose answer was lost leaves leases that lapse; an Ack repeated is known to be done."""
    total = 100
    await shaky.create(lease=span(500), retry={"max_attempts": 1_000, "min_backoff": span(10), "max_backoff": span(20)})
    await shaky.put(*(b"%d" % number for number in range(total)))
    done: set[bytes] = set()
    setattr(proxy, fault, share)

    async def consume() -> None:
        while len(done) < total:
            try:
                for delivery in (await shaky.get(5, wait_ms=200)).deliveries:
                    if await settle(delivery.lease):
                        done.add(delivery.message.payload)
            except grpc.aio.AioRpcError as error:
                assert error.code() is UNAVAILABLE, error_of(error)

    async def settle(lease: str) -> bool:
        while True:
            try:
                [how] = await shaky.ack(lease)
            except grpc.aio.AioRpcError as error:
                assert error.code() is UNAVAILABLE, error_of(error)
            else:
                return how in (message_pb2.SETTLED_ACKED, message_pb2.SETTLED_ALREADY_ACKED)

    async with asyncio.timeout(30):
        await asyncio.gather(*(consume() for _ in range(4)))
    proxy.restore()
    assert len(done) == total
    assert (await shaky.counts()).acked == total


async def test_when_every_answer_is_lost_a_write_over_a_standing_connection_is_unknown_and_done_once(
    shaky: Line, proxy: ReplyProxy, fresh_store_server: StoreServer
) -> None:
    """Nothing below us sends a script again: the store itself says how often it was asked."""
    await shaky.create()
    await shaky.put(b"so that the store knows the script")
    with fresh_store_server.client(timeout_s=10) as client, fresh_store_server.client(timeout_s=10) as ender:
        asked: list[str] = []
        ready = threading.Event()
        the_end = f"the end, {uuid.uuid4()}"  # scripts are shown, too, and what their comments say

        def listen() -> None:
            with client.monitor() as monitor:
                ready.set()
                for command in monitor.listen():
                    if command["command"] == f"ECHO {the_end}":
                        return
                    if command["client_type"] != "lua":  # what a script does is not what was asked
                        asked.append(command["command"])

        listening = asyncio.create_task(asyncio.to_thread(listen))
        assert await asyncio.to_thread(ready.wait, 5)
        unknown: list[str] = []
        unsent: list[str] = []
        for number in range(5):
            await shaky.describe()  # over a connection that stands
            proxy.drop_replies = 1.0
            while len(unsent) == number:  # until no connection stands any more, and none can be made
                name = f"marker-{number}-{len(unknown)}."
                answer = await ask(shaky, "Put", requests("jobs", "", id_=name)["Put"], timeout=10)
                if answer.error.reason == "STORE_UNAVAILABLE":
                    unsent.append(name)
                else:
                    assert_unknown(answer, "RESET", within_s=1.0)
                    unknown.append(name)
            proxy.restore()
        ender.echo(the_end)
        await listening
    assert len(unknown) >= 5
    for name in unknown:
        assert len([command for command in asked if name in command]) == 1
    assert not [command for command in asked if any(name in command for name in unsent)]
    assert (await shaky.counts()).accepted == 1 + len(unknown)


async def test_a_reset_of_idle_connections_is_noticed_by_nobody(shaky: Line, proxy: ReplyProxy) -> None:
    await shaky.create()
    for number in range(20):
        proxy.cut(refuse=False)
        answer = await asyncio.wait_for(shaky.put(b"%d" % number), 1.0)
        assert not answer.results[0].error.code
    assert (await shaky.counts()).accepted == 20


async def test_an_answer_that_is_another_calls_is_not_believed(shaky: Line, proxy: ReplyProxy) -> None:
    """Once unknown, with every connection dropped; then all is well again."""
    await shaky.create()
    for turn in range(3):
        await shaky.describe()
        before = proxy.connections
        proxy.stray = STRAY
        request = requests("jobs", "", id_=f"slipped-{turn}")["Put"]
        answer = await ask(shaky, "Put", request, timeout=10)
        assert_unknown(answer, "SLIPPED", within_s=1.0)
        assert not proxy.stray
        for _ in range(20):
            assert (await shaky.describe()).counts.accepted == turn + 1
        assert proxy.connections > before


async def test_among_torn_answers_no_answer_is_ever_another_calls(shaky: Line, proxy: ReplyProxy) -> None:
    lines = [Line(shaky.stub, f"queue-{number}") for number in range(20)]
    for number, line in enumerate(lines):
        await line.create(bound=number + 1)
    proxy.reset_mid_reply = 0.2
    answered = 0
    for _ in range(15):
        answers = await asyncio.gather(*(line.describe() for line in lines), return_exceptions=True)
        for number, answer in enumerate(answers):
            if isinstance(answer, BaseException):
                assert isinstance(answer, grpc.aio.AioRpcError)
                assert error_of(answer).reason == "STORE_UNAVAILABLE"
            else:
                answered += 1
                assert (answer.name, answer.policy.bound) == (lines[number].name, number + 1)
    assert answered


async def test_answers_that_are_late_and_out_of_turn_go_to_their_own_calls(shaky: Line, proxy: ReplyProxy) -> None:
    """Many calls at once, each on a queue of its own, over a wire that is late at random."""
    lines = [Line(shaky.stub, f"queue-{number}") for number in range(40)]
    await asyncio.gather(*(line.create(bound=number + 1) for number, line in enumerate(lines)))
    proxy.delay_s = 0.02

    async def check(number: int, line: Line) -> None:
        for turn in range(10):
            described = await line.describe()
            assert (described.name, described.policy.bound) == (line.name, number + 1)
            await line.put(b"%d" % turn) if turn < number + 1 else None

    await asyncio.gather(*(check(number, line) for number, line in enumerate(lines)))
    proxy.delay_s = 0.0
    lengths = [(await line.counts()).length for line in lines]
    assert lengths == [min(number + 1, 10) for number in range(40)]


# One answer lost, or torn in its middle. What was asked is done; asking again tells.


@pytest.fixture(params=["drop_replies", "reset_mid_reply"])
async def losing(shaky: Line, proxy: ReplyProxy, request: pytest.FixtureRequest) -> Losing:
    """Makes a call whose answer is lost, over a connection that stands, and returns when the wire is sound again."""

    async def lose(name: str, asked: ProtoMessage) -> None:
        await ask(shaky, "Describe", requests("jobs", "")["Describe"], timeout=10)
        setattr(proxy, request.param, 1.0)
        assert_unknown(await ask(shaky, name, asked, timeout=10), "RESET", within_s=1.0)
        proxy.restore()
        await eventually(shaky.counts, within=3.0)

    return lose


async def test_a_put_whose_answer_is_lost_and_that_is_repeated_with_its_id_is_stored_once(
    shaky: Line, losing: Losing
) -> None:
    await shaky.create()
    await shaky.put(b"so that the store knows the script")
    await losing("Put", requests("jobs", "", id_="lost")["Put"])
    [again] = (await shaky.put(message_pb2.Message(id="lost", payload=b"once"), on_duplicate=KEEP)).results
    assert again.deduplicated
    assert (await shaky.counts()).accepted == 2


async def test_a_create_whose_answer_is_lost_is_repeated_into_the_same_queue(shaky: Line, losing: Losing) -> None:
    await Line(shaky.stub, "other").create()
    request = queue_service_pb2.CreateRequest(queue="jobs", policy=queue_pb2.Policy(bound=3))
    await losing("Create", request)
    again = await shaky.create(bound=3)
    assert (again.created, again.queue.policy.bound) == (False, 3)


async def test_an_ack_whose_answer_is_lost_is_already_acked_when_repeated(shaky: Line, losing: Losing) -> None:
    await shaky.create()
    await shaky.put(b"one", b"two")
    known, lost = [delivery.lease for delivery in await shaky.take(2)]
    await shaky.ack(known)
    await losing("Ack", requests("jobs", lost)["Ack"])
    assert await shaky.ack(lost) == [message_pb2.SETTLED_ALREADY_ACKED]
    assert (await shaky.counts()).acked == 2


async def test_a_get_whose_answer_is_lost_gives_its_message_to_the_next(shaky: Line, losing: Losing) -> None:
    await shaky.create(lease=span(500))
    assert not (await shaky.get()).deliveries
    await shaky.put(b"one")
    await losing("Get", requests("jobs", "")["Get"])
    delivery = await shaky.take_one(wait_ms=10_000)
    assert (delivery.message.payload, delivery.attempt) == (b"one", 2)
