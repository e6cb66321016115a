"""A store in trouble: every call is answered in time and says whether anything happened; nothing needs a restart."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import redis

from harness import FaultProxy, ServiceProcess, StoreServer, WireError, error_of, eventually, refused
from headway.v1 import admin_service_pb2, message_pb2, queue_service_pb2
from wire.calls import (
    ACKED,
    ALREADY_ACKED,
    EXTENDED,
    RELEASED,
    RESOURCE_EXHAUSTED,
    SLACK_S,
    UNAVAILABLE,
    Keys,
    Line,
    Message,
    leases,
    line_at,
    payloads,
    span,
)
from wire.every_call import QUEUE_SERVICE, REQUESTS, short
from wire.refusing_store import RefusingStore

PREFIX = "__trouble__"
MARGIN_S = 1.0  # what a busy machine adds
BUDGET_S = 2.0
READ_ONLY = {"Describe", "Peek"}
KEEP = message_pb2.ON_DUPLICATE_KEEP
Connect = Callable[[str], grpc.aio.Channel]
Figure = Callable[[str, str], None]


class Rig:
    """A store of this test's own, a faulty wire to it, a service behind that, and one queue."""

    def __init__(
        self, store: StoreServer, proxy: FaultProxy, service: ServiceProcess, line: Line, channel: grpc.aio.Channel
    ) -> None:
        self.store = store
        self.proxy = proxy
        self.service = service
        self.line = line
        self.channel = channel

    @property
    def keys(self) -> Keys:
        """The queue's keys, seen without the faulty wire."""
        return Keys(self.store.client(), PREFIX, self.line.name)

    async def call(self, method: str, timeout: float = 10) -> WireError | bytes:
        """One sound call: its answer, or what it said of its failure."""
        request = REQUESTS[method](self.line.name).SerializeToString()
        try:
            raw: Any = self.channel.unary_unary(method)
            answer: bytes = await raw(request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            return error_of(error)
        return answer

    async def works_again(self, figure: Figure, trouble: str) -> None:
        """Every call works within a second of now (and is given more, on a busy machine)."""
        started = time.perf_counter()
        await eventually(self.works, within=SLACK_S)
        span_s = time.perf_counter() - started
        figure(f"working again after: {trouble}", f"{span_s * 1_000:.0f} ms")
        assert span_s < 1.0 + MARGIN_S

    async def works(self) -> bool:
        with contextlib.suppress(grpc.aio.AioRpcError):
            request = queue_service_pb2.PutRequest(queue=self.line.name, messages=[Message(payload=b"works")])
            await self.line.stub.Put(request, timeout=0.5)
            return True
        return False


@pytest.fixture
async def rig(
    fresh_store_server: StoreServer, make_service: Callable[..., ServiceProcess], connect: Connect
) -> AsyncIterator[Rig]:
    async with rig_on(fresh_store_server, make_service, connect) as made:
        yield made


@asynccontextmanager
async def rig_on(
    store: StoreServer, make_service: Callable[..., ServiceProcess], connect: Connect, *, password: str = ""
) -> AsyncIterator[Rig]:
    async with FaultProxy(store.port) as proxy:
        url = proxy.url.replace("redis://", f"redis://:{password}@") if password else proxy.url
        # In a thread: the proxy lives in this one.
        service = await asyncio.to_thread(lambda: make_service(HEADWAY_REDIS_URL=url, PRESSURE_PREFIX=PREFIX))
        name = f"trouble-{uuid.uuid4().hex[:8]}"
        async with line_at(service.address, name, connect) as line, connect(service.address) as channel:
            yield Rig(store, proxy, service, line, channel)
        await asyncio.to_thread(service.stop)


def assert_nothing_happened(said: WireError | bytes, cause: str | set[str]) -> None:
    """STORE_UNAVAILABLE with everything that it promises."""
    assert isinstance(said, WireError), said
    causes = {cause} if isinstance(cause, str) else cause
    assert (said.reason, said.code) == ("STORE_UNAVAILABLE", UNAVAILABLE), said
    assert said.metadata["cause"] in causes, said
    assert said.retry_delay is not None
    assert said.domain == "headway.v1"


async def every_call(rig: Rig, timeout: float = 10) -> dict[str, tuple[WireError | bytes, float]]:
    """What every call answers, all at once, and how long it took."""

    async def one(method: str) -> tuple[str, tuple[WireError | bytes, float]]:
        started = time.perf_counter()
        said = await rig.call(method, timeout)
        return short(method), (said, time.perf_counter() - started)

    return dict(await asyncio.gather(*(one(method) for method in REQUESTS)))


async def test_while_the_store_refuses_connections_every_call_says_so_and_works_again_after(
    rig: Rig, figure: Figure
) -> None:
    await rig.line.create()
    rig.proxy.cut()
    for number in range(3):
        answers = await every_call(rig)
        for method, (said, took) in answers.items():
            assert took < BUDGET_S + MARGIN_S, method
            # The first may have been on its way when the connection was cut.
            if number == 0 and isinstance(said, WireError) and said.reason == "OUTCOME_UNKNOWN":
                assert method not in READ_ONLY
                continue
            assert_nothing_happened(said, "REFUSED")
    with refused("STORE_UNAVAILABLE", UNAVAILABLE):
        await rig.line.stub.List(queue_service_pb2.ListRequest(), timeout=10)
    rig.proxy.restore()
    await rig.works_again(figure, "refused connections")
    assert (await rig.line.create()).created is False


@pytest.mark.parametrize("how", ["the server is stopped", "the wire is silent"])
async def test_while_the_store_is_silent_every_call_is_answered_in_time_and_works_again_after(
    rig: Rig, figure: Figure, how: str
) -> None:
    await rig.line.create()
    if how == "the server is stopped":
        rig.store.pause()
    else:
        rig.proxy.silent = True
    try:
        for method, (said, took) in (await every_call(rig)).items():
            assert took < BUDGET_S + MARGIN_S, method
            assert_told_of_the_silence(method, said)
    finally:
        if how == "the server is stopped":
            rig.store.resume()
        else:
            rig.proxy.restore()
    await rig.works_again(figure, how)


def assert_told_of_the_silence(method: str, said: WireError | bytes) -> None:
    """Nothing is known of a call that may have changed something; a look has failed."""
    assert isinstance(said, WireError), method
    assert said.code is UNAVAILABLE, (method, said)
    reasons = {"STORE_UNAVAILABLE"} if method in READ_ONLY else {"STORE_UNAVAILABLE", "OUTCOME_UNKNOWN"}
    assert said.reason in reasons, (method, said)
    assert said.metadata["cause"] == "SILENT"
    assert said.retry_delay is not None


@pytest.mark.parametrize("method", ["Describe", "Put", "Get", "Ack"])
async def test_a_call_with_a_short_deadline_is_answered_with_a_reason_before_it(rig: Rig, method: str) -> None:
    await rig.line.create()
    rig.store.pause()
    try:
        for timeout in (0.5, 1):

            async def is_told(timeout: float = timeout) -> bool:
                # On a busy machine the last moment before the deadline may pass unused: then it is tried again.
                assert_told_of_the_silence(method, await rig.call(QUEUE_SERVICE + method, timeout))
                return True

            await eventually(is_told, within=10)
    finally:
        rig.store.resume()


async def test_the_server_info_tells_that_the_store_is_down_and_what_it_was(rig: Rig) -> None:
    assert rig.line.admin is not None
    request = admin_service_pb2.GetServerInfoRequest()
    before = await rig.line.admin.GetServerInfo(request, timeout=10)
    assert before.store.reachable
    rig.proxy.cut()
    during = await rig.line.admin.GetServerInfo(request, timeout=10)
    assert not during.store.reachable
    assert (during.store.kind, during.store.version) == (before.store.kind, before.store.version)
    rig.proxy.restore()

    async def is_reachable() -> bool:
        assert rig.line.admin is not None
        return (await rig.line.admin.GetServerInfo(request, timeout=10)).store.reachable

    await eventually(is_reachable)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("LOADING Redis is loading the dataset in memory", "LOADING"),
        ("READONLY You can't write against a read only replica.", "READONLY"),
        ("MISCONF Errors writing to the AOF file: No space left on device", "MISCONF"),
        ("BUSY Redis is busy running a script.", "BUSY"),
        ("CLUSTERDOWN The cluster is down", "CLUSTERDOWN"),
        ("MASTERDOWN Link with MASTER is down", "STORE"),
    ],
    ids=lambda value: value.split(" ")[0],
)
async def test_what_the_store_refuses_has_not_happened_and_its_word_is_told(
    rig: Rig, figure: Figure, error: str, cause: str
) -> None:
    await rig.line.create()
    async with RefusingStore(error) as store:
        rig.proxy.upstream = store.port
        rig.proxy.cut(refuse=False)

        async def all_say_so() -> bool:
            for said, _ in (await every_call(rig)).values():
                assert_nothing_happened(said, cause)
            return True

        await eventually(all_say_so)  # the first may still have been on its way to the other server
        assert store.refused
        with refused("STORE_UNAVAILABLE", UNAVAILABLE):
            await rig.line.stub.List(queue_service_pb2.ListRequest(), timeout=10)
    rig.proxy.upstream = rig.store.port
    rig.proxy.cut(refuse=False)
    await rig.works_again(figure, cause)


async def test_a_primary_that_became_a_replica_refuses_writes_until_it_is_a_primary_again(
    rig: Rig, figure: Figure
) -> None:
    await rig.line.create()
    await rig.line.put(b"one")
    with rig.store.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        said = await rig.call(QUEUE_SERVICE + "Put")
        assert_nothing_happened(said, "READONLY")
        with contextlib.suppress(grpc.aio.AioRpcError):  # looking may still be possible
            assert (await rig.line.describe()).counts.length == 1
        client.execute_command("REPLICAOF", "NO", "ONE")
    await rig.works_again(figure, "a read-only replica")
    assert (await rig.line.counts()).accepted == 2


async def test_too_few_replicas_are_told_as_not_durable_and_nothing_happens(rig: Rig, figure: Figure) -> None:
    await rig.line.create()
    with rig.store.client() as client:
        client.config_set("min-replicas-to-write", 1)
        with refused("NOT_DURABLE", UNAVAILABLE) as said:
            await rig.line.put(b"one")
        assert said.retry_delay is not None
        client.config_set("min-replicas-to-write", 0)
    await rig.works_again(figure, "too few replicas")
    assert (await rig.line.counts()).accepted == 1


async def test_a_store_that_cannot_save_refuses_with_misconf_until_it_can(
    make_store_server: Callable[..., StoreServer],
    make_service: Callable[..., ServiceProcess],
    connect: Connect,
    figure: Figure,
    tmp_path: Path,
) -> None:
    store = make_store_server("--enable-protected-configs", "yes", durable=False)
    async with rig_on(store, make_service, connect) as rig:
        await rig.line.create()
        with store.client() as client:
            sound = client.config_get("dir")["dir"]
            vanishing = tmp_path / "vanishing"
            vanishing.mkdir()
            client.config_set("save", "3600 1")
            client.config_set("dir", str(vanishing))
            shutil.rmtree(vanishing)
            client.bgsave()
            await eventually(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
            said = await rig.call(QUEUE_SERVICE + "Put")
            assert_nothing_happened(said, "MISCONF")
            client.config_set("dir", sound)
            client.bgsave()
            await eventually(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "ok")
        await rig.works_again(figure, "a store that cannot save")


async def test_a_script_that_does_not_end_makes_the_store_busy_until_it_is_killed(rig: Rig, figure: Figure) -> None:
    await rig.line.create()
    with rig.store.client() as client, rig.store.client(timeout_s=60) as busy:
        client.config_set("busy-reply-threshold", 50)

        def run_for_ever() -> None:
            with contextlib.suppress(redis.RedisError):
                busy.eval("while true do end", 0)

        endless = threading.Thread(target=run_for_ever)
        endless.start()
        try:

            async def is_busy() -> bool:
                said = await rig.call(QUEUE_SERVICE + "Put")
                assert_nothing_happened(said, "BUSY")
                return True

            await eventually(is_busy, within=10)
            for method, (said, took) in (await every_call(rig)).items():
                assert_nothing_happened(said, {"BUSY", "SILENT"})
                assert took < BUDGET_S + MARGIN_S, method
        finally:
            client.script_kill()
            await asyncio.to_thread(endless.join, 10)
    await rig.works_again(figure, "a script that did not end")


async def test_forgotten_scripts_are_sent_again_and_nobody_notices(rig: Rig) -> None:
    await rig.line.create()
    with rig.store.client() as client:
        for number in range(5):
            client.script_flush()
            await rig.line.put(b"%d" % number)
            client.script_flush()
            [delivery] = await rig.line.take()
            client.script_flush()
            assert await rig.line.ack(delivery.lease) == [ACKED]
        # Many at once, each of them unknown to the store.
        client.script_flush()
        await asyncio.gather(*(rig.line.put(b"x") for _ in range(50)))
    assert (await rig.line.counts()).accepted == 55


# Out of memory.


@pytest.fixture
def full(rig: Rig) -> Iterator[redis.Redis]:
    """Makes the store full when its `config_set("maxmemory", …)` is called; gives it room afterwards."""
    with rig.store.client() as client:
        yield client
        client.config_set("maxmemory", 0)


async def test_a_full_store_takes_nothing_new_and_settles_everything(rig: Rig, full: redis.Redis) -> None:
    line = rig.line
    await line.create(retry={"max_attempts": 5})
    await line.put(*(b"%d" % number for number in range(8)), Message(id="later", payload=b"x", delay=span(200)))
    one, two, three, four = await line.take(4)
    full.config_set("maxmemory", 1)
    with refused("STORE_FULL", RESOURCE_EXHAUSTED) as said:
        await line.put(b"new")
    assert said.retry_delay is not None
    with refused("STORE_FULL", RESOURCE_EXHAUSTED):
        await Line(line.stub, line.name + "-new").create()
    assert await line.ack(one.lease) == [ACKED]
    assert [result.settled for result in await line.delay(two.lease, delay_ms=0)] == [RELEASED]
    assert [result.settled for result in await line.extend(three.lease)] == [EXTENDED]
    answer = await line.get(2, ack=[four.lease])
    assert ([result.settled for result in answer.settled], len(answer.deliveries)) == ([ACKED], 2)
    assert (await line.counts()).acked == 2
    assert await line.peek()
    await eventually(lambda: rig.keys.length == 4)  # what falls due still joins the line
    # A waiting producer is told, too.
    with refused("STORE_FULL", RESOURCE_EXHAUSTED):
        await line.put(b"new", wait_ms=500)
    assert (await line.close()).closed
    await line.delete()
    assert rig.keys.all() == set()
    full.config_set("maxmemory", 0)
    assert (await line.create()).created
    await line.put(b"new")


async def test_a_put_refused_by_a_full_store_has_left_nothing(rig: Rig, full: redis.Redis) -> None:
    await rig.line.create(bound=3)
    await rig.line.put(b"one")
    before = {key: rig.keys.client.dump(key) for key in rig.keys.all()}
    full.config_set("maxmemory", 1)
    for _ in range(3):
        with refused("STORE_FULL"):
            await rig.line.put(Message(id="new", payload=b"x" * 10_000), b"second")
    full.config_set("maxmemory", 0)
    assert {key: rig.keys.client.dump(key) for key in rig.keys.all()} == before
    results = (await rig.line.put(Message(id="new", payload=b"x"))).results
    assert (results[0].position, results[0].ticket) == (2, 2)


async def test_a_foreign_queue_can_be_got_from_though_the_store_is_full(rig: Rig, full: redis.Redis) -> None:
    keys = rig.keys
    keys.client.set(keys["bound"], 0)
    for token in ("producer_free", "consumer_free", "not_full"):
        keys.client.lpush(keys[token], 0)
    keys.client.lpush(keys[""], b"theirs")
    full.config_set("maxmemory", 1)
    assert payloads(await rig.line.take()) == [b"theirs"]


# Lost answers.


async def test_a_put_whose_answer_is_lost_is_unknown_and_repeated_with_its_id_stored_once(rig: Rig) -> None:
    await rig.line.create()
    rig.proxy.drop_replies = 1.0
    with refused("OUTCOME_UNKNOWN", UNAVAILABLE) as said:
        await rig.line.put(Message(id="one", payload=b"once"))
    assert said.metadata["cause"]
    assert said.retry_delay is not None
    rig.proxy.restore()

    async def is_stored() -> bool:
        with contextlib.suppress(grpc.aio.AioRpcError):
            results = (await rig.line.put(Message(id="one", payload=b"once"), on_duplicate=KEEP)).results
            return not results[0].HasField("error")
        return False

    await eventually(is_stored)
    assert payloads((await rig.line.get(10)).deliveries) == [b"once"]
    assert (await rig.line.counts()).accepted == 1


async def test_an_ack_whose_answer_is_lost_is_unknown_and_repeated_is_settled_once(rig: Rig) -> None:
    await rig.line.create()
    await rig.line.put(b"one")
    lease = (await rig.line.take_one()).lease
    rig.proxy.drop_replies = 1.0
    with refused("OUTCOME_UNKNOWN", UNAVAILABLE):
        await rig.line.ack(lease)
    rig.proxy.restore()

    async def settled() -> list[int] | None:
        with contextlib.suppress(grpc.aio.AioRpcError):
            return list(await rig.line.ack(lease))
        return None

    assert await eventually(settled) in ([ACKED], [ALREADY_ACKED])
    assert (await rig.line.counts()).acked == 1


async def test_a_create_whose_answer_is_lost_is_unknown_and_repeated_is_the_same_queue(rig: Rig) -> None:
    with refused("QUEUE_NOT_FOUND"):
        await rig.line.describe()  # now there is a connection, and it is the Create's answer that is lost
    rig.proxy.drop_replies = 1.0
    with refused("OUTCOME_UNKNOWN", UNAVAILABLE):
        await rig.line.create(bound=3)
    rig.proxy.restore()

    async def stands() -> bool:
        with contextlib.suppress(grpc.aio.AioRpcError):
            return (await rig.line.create(bound=3)).queue.policy.bound == 3
        return False

    await eventually(stands)


async def test_a_get_whose_answer_is_lost_gives_its_message_to_the_next(rig: Rig) -> None:
    await rig.line.create(lease=span(500))
    await rig.line.put(b"one")
    rig.proxy.drop_replies = 1.0
    with refused("OUTCOME_UNKNOWN", UNAVAILABLE):
        await rig.line.get()
    rig.proxy.restore()
    await eventually(rig.works)
    got = [await rig.line.take_one(wait_ms=10_000) for _ in range(2)]
    assert sorted(payloads(got)) == [b"one", b"works"]


@pytest.mark.parametrize("fault", ["drop_replies", "reset_mid_reply"])
async def test_with_every_third_answer_lost_repeating_with_ids_loses_and_doubles_nothing(rig: Rig, fault: str) -> None:
    await rig.line.create(lease=span(1_000))
    setattr(rig.proxy, fault, 0.3)
    total = 60

    async def put(number: int) -> None:
        sent = Message(id=f"{number}", payload=b"%d" % number)
        while True:
            try:
                answer = await rig.line.put(sent, on_duplicate=KEEP)
            except grpc.aio.AioRpcError as error:
                said = error_of(error)
                assert said.reason in {"OUTCOME_UNKNOWN", "STORE_UNAVAILABLE"}, said
                continue
            assert answer.results[0].id == sent.id
            return

    async with asyncio.timeout(60):
        await asyncio.gather(*(put(number) for number in range(total)))
    acked: list[bytes] = []

    async def settle(lease: str, payload: bytes) -> None:
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                [state] = await rig.line.ack(lease)
                if state in {ACKED, ALREADY_ACKED}:
                    acked.append(payload)
                return

    async with asyncio.timeout(60):
        while len(acked) < total:
            with contextlib.suppress(grpc.aio.AioRpcError):
                answer = await rig.line.get(5, wait_ms=500)
                for delivery in answer.deliveries:
                    await settle(delivery.lease, delivery.message.payload)
    rig.proxy.restore()
    assert sorted(acked) == sorted(b"%d" % number for number in range(total))
    counts = await rig.line.counts()
    assert (counts.accepted, counts.acked, counts.length, counts.leased) == (total, total, 0, 0)


async def test_no_answer_is_ever_another_calls(rig: Rig) -> None:
    lines = [Line(rig.line.stub, f"{rig.line.name}-{number}") for number in range(20)]
    for number, line in enumerate(lines):
        await line.create(bound=number + 1)
    rig.proxy.reset_mid_reply = 0.2
    answered = 0
    for _ in range(15):
        answers = await asyncio.gather(*(line.describe() for line in lines), return_exceptions=True)
        for number, answer in enumerate(answers):
            if isinstance(answer, BaseException):
                assert isinstance(answer, grpc.aio.AioRpcError)
                assert error_of(answer).reason == "STORE_UNAVAILABLE"
                continue
            answered += 1
            assert (answer.name, answer.policy.bound) == (lines[number].name, number + 1)
    assert answered


async def test_trouble_with_the_store_is_logged_without_payloads_tokens_or_passwords(
    fresh_store_server: StoreServer, make_service: Callable[..., ServiceProcess], connect: Connect
) -> None:
    with fresh_store_server.client() as client:
        client.config_set("requirepass", "SECRET-PASSWORD")
    async with rig_on(fresh_store_server, make_service, connect, password="SECRET-PASSWORD") as rig:
        await rig.line.create()
        await rig.line.put(b"SECRET-PAYLOAD")
        lease = (await rig.line.take_one()).lease
        for trouble in ("cut", "lost", "mid"):
            if trouble == "cut":
                rig.proxy.cut()
            elif trouble == "lost":
                rig.proxy.drop_replies = 1.0
            else:
                rig.proxy.reset_mid_reply = 1.0
            for _ in range(15):
                sent = Message(id="SECRET-ID", payload=b"SECRET-PAYLOAD", headers={"k": "SECRET-HEADER"})
                calls = (
                    rig.line.put(sent),
                    rig.line.ack(lease),
                    rig.line.delay(lease, delay_ms=0, reason="SECRET-REASON"),
                    rig.line.describe(),
                )
                answers = await asyncio.gather(*calls, return_exceptions=True)
                assert all(isinstance(answer, grpc.aio.AioRpcError) for answer in answers)
            rig.proxy.restore()
            await eventually(rig.works)
        log = rig.service.log.read_text(errors="replace")
    assert "SECRET" not in log
    assert lease not in log
    assert "never retrieved" not in log  # every failure belongs to somebody who answers for it


# A store that dies and comes back.


async def test_a_killed_and_restarted_store_is_used_again_without_a_restart_and_lost_nothing(
    rig: Rig, figure: Figure
) -> None:
    await rig.line.create()
    await rig.line.put(*(b"%d" % number for number in range(10)))
    taken = await rig.line.take(3, lease_ms=600_000)
    await asyncio.to_thread(rig.store.kill)
    assert_nothing_happened(await eventually_a_failure(rig), {"REFUSED"})
    await asyncio.to_thread(rig.store.start)
    await rig.works_again(figure, "a store that was killed and started")
    assert await rig.line.ack(*leases(taken)) == [ACKED] * 3
    assert payloads((await rig.line.get(20)).deliveries)[:7] == [b"%d" % number for number in range(3, 10)]


async def eventually_a_failure(rig: Rig) -> WireError:
    """What is said once the call under way at the moment of the trouble is over."""

    async def said() -> WireError | None:
        answer = await rig.call(QUEUE_SERVICE + "Describe")
        return answer if isinstance(answer, WireError) else None

    found = await eventually(said)
    assert found is not None
    return found


async def quiet(rig: Rig) -> None:
    """Returns once no script has run for a while: then nobody's answer is on its way."""
    seen, since = -1, time.monotonic()
    with rig.store.client() as client:

        def is_quiet() -> bool:
            nonlocal seen, since
            calls = sum(stat["calls"] for name, stat in client.info("commandstats").items() if "eval" in name)
            if calls != seen:
                seen, since = calls, time.monotonic()
            return time.monotonic() - since > 0.1

        await eventually(is_quiet)


@pytest.mark.parametrize("trouble", ["killed", "silent", "cut"])
async def test_waiting_gets_survive_the_trouble_and_are_woken_after_it(rig: Rig, trouble: str) -> None:
    await rig.line.create()
    waiting = [asyncio.create_task(rig.line.get(wait_ms=60_000)) for _ in range(3)]
    await eventually(lambda: waits(rig.line, consumers=3))
    await quiet(rig)
    if trouble == "killed":
        await asyncio.to_thread(rig.store.kill)
        await eventually_a_failure(rig)
        await asyncio.to_thread(rig.store.start)
    elif trouble == "silent":
        rig.store.pause()
        await rig.call(QUEUE_SERVICE + "Describe")
        rig.store.resume()
    else:
        rig.proxy.cut()
        await eventually_a_failure(rig)
        rig.proxy.restore()
    ended = [call.exception() or call.result() for call in waiting if call.done()]
    assert ended == []
    # Put around the service: no hint of its own, only what the store tells those who listen.
    keys = rig.keys
    keys.client.lpush(keys[""], b"1", b"2", b"3")
    answers = await asyncio.wait_for(asyncio.gather(*waiting), 15)
    assert sorted(payload for one in answers for payload in payloads(one.deliveries)) == [b"1", b"2", b"3"]


async def waits(line: Line, *, consumers: int = 0, producers: int = 0) -> bool:
    counts = (await line.describe()).counts
    return (counts.consumers_waiting, counts.producers_waiting) == (consumers, producers)


async def test_a_message_put_while_the_listeners_were_cut_off_wakes_who_waits_after_the_reconnect(rig: Rig) -> None:
    await rig.line.create()
    waiting = asyncio.create_task(rig.line.get(wait_ms=60_000))
    await eventually(lambda: waits(rig.line, consumers=1))
    await quiet(rig)
    rig.proxy.cut()
    await eventually_a_failure(rig)
    keys = rig.keys
    keys.client.lpush(keys[""], b"unheard")
    rig.proxy.restore()
    assert payloads((await asyncio.wait_for(waiting, 15)).deliveries) == [b"unheard"]


async def test_waiting_puts_survive_a_restarted_store(rig: Rig) -> None:
    await rig.line.create(bound=1)
    await rig.line.put(b"first")
    waiting = asyncio.create_task(rig.line.put(b"second", wait_ms=60_000))
    await eventually(lambda: waits(rig.line, producers=1))
    await quiet(rig)
    await asyncio.to_thread(rig.store.kill)
    await eventually_a_failure(rig)
    await asyncio.to_thread(rig.store.start)
    await eventually(lambda: takes(rig.line))
    await asyncio.wait_for(waiting, 15)
    assert payloads(await rig.line.take()) == [b"second"]


async def takes(line: Line) -> bool:
    with contextlib.suppress(grpc.aio.AioRpcError):
        return bool((await line.get()).deliveries)
    return False


async def test_leases_and_delays_fall_due_after_the_store_came_back(rig: Rig) -> None:
    await rig.line.create()
    await rig.line.put(b"leased", Message(payload=b"delayed", delay=span(300)))
    await rig.line.take_one(lease_ms=300)
    await asyncio.to_thread(rig.store.kill)
    await eventually_a_failure(rig)
    await asyncio.to_thread(rig.store.start)
    await eventually(lambda: rig.keys.length == 2, within=10)


async def test_a_store_whose_data_is_gone_has_no_queues_and_old_leases_are_gone(
    make_store_server: Callable[..., StoreServer], make_service: Callable[..., ServiceProcess], connect: Connect
) -> None:
    store = make_store_server(durable=False)
    async with rig_on(store, make_service, connect) as rig:
        await rig.line.create()
        await rig.line.put(b"one", b"two")
        lease = (await rig.line.take_one()).lease
        waiting = asyncio.create_task(rig.line.get(2, wait_ms=100))
        await waiting
        await asyncio.to_thread(store.restart)

        async def is_gone() -> bool:
            said = await rig.call(QUEUE_SERVICE + "Describe")
            assert isinstance(said, WireError)
            assert said.reason == "QUEUE_NOT_FOUND"
            return True

        await eventually(is_gone)
        assert await rig.line.ack(lease) == [message_pb2.SETTLED_GONE]
        assert (await rig.line.create()).created
        assert (await rig.line.get()).deliveries == []
