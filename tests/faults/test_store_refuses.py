"""The store answers with errors: what each of them means for a caller. First as a stand-in says them to everything,
then as real stores do."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable

import grpc
import pytest
import redis

from faults.conftest import Open, Serve
from faults.moments import works
from faults.table import LOOKS_FIRST, ask_all, ask_each, assert_unavailable
from faults.wires import RefusingStore
from harness import FaultProxy, StoreServer, error_of, eventually, refused
from headway.v1 import admin_service_pb2
from wire.calls import ACKED, RESOURCE_EXHAUSTED, UNAVAILABLE, Line, payloads

ERRORS = {
    "LOADING": "LOADING the dataset in memory",
    "READONLY": "READONLY You can't write against a read only replica.",
    "MISCONF": "MISCONF Errors writing to the AOF file: No space left on device",
    "BUSY": "BUSY a script is running. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "CLUSTERDOWN": "CLUSTERDOWN The cluster is down",
}
# Known as well, but not by a cause of their own.
OTHERS = {
    "MASTERDOWN": "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "TRYAGAIN": "TRYAGAIN Multiple keys request during rehashing of slot",
    "NOAUTH": "NOAUTH Authentication required.",
    "NOPERM": "NOPERM this user has no permissions to run the 'evalsha' command",
}


@pytest.mark.parametrize("word", [*ERRORS, *OTHERS])
async def test_an_error_of_the_store_is_told_to_every_call_alike_and_is_over_when_it_is_over(
    serve: Serve, open_line: Open, store_server: StoreServer, word: str
) -> None:
    """To each of many that went out as one pipeline, too: a reply that came is never called lost."""
    async with RefusingStore((ERRORS | OTHERS)[word]) as refusing, FaultProxy(refusing.port) as wire:
        line = await open_line(await serve(wire.url, PRESSURE_PREFIX=f"__{uuid.uuid4().hex}__"), "jobs")
        assert line.admin
        for _ in range(3):
            for answer in await ask_all(line, ""):
                assert_unavailable(answer, word if word in ERRORS else "STORE", within_s=1.0)
        told = await line.admin.GetServerInfo(admin_service_pb2.GetServerInfoRequest(), timeout=5)
        assert not told.store.reachable
        wire.upstream = store_server.port
        wire.cut(refuse=False)

        async def is_over() -> bool:
            try:
                return (await line.create()).queue.name == "jobs"
            except grpc.aio.AioRpcError as error:
                assert error.code() is UNAVAILABLE, error_of(error)
                return False

        await eventually(is_over, within=3.0)
        assert await works(line)
        await line.delete()


async def test_too_few_replicas_and_no_memory_have_reasons_of_their_own(serve: Serve, open_line: Open) -> None:
    async with RefusingStore() as store:
        line = await open_line(await serve(store.url), "jobs")
        store.error = "NOREPLICAS Not enough good replicas to write."
        with refused("NOT_DURABLE", UNAVAILABLE) as said:
            await line.put(b"x")
        assert said.retry_delay
        store.error = "OOM command not allowed when used memory > 'maxmemory'."
        with refused("STORE_FULL", RESOURCE_EXHAUSTED) as said:
            await line.put(b"x")
        assert said.retry_delay


async def test_an_error_that_nobody_knows_is_a_defect_and_its_text_stays_inside(serve: Serve, open_line: Open) -> None:
    async with RefusingStore() as store:
        line = await open_line(await serve(store.url), "jobs")
        store.error = "NONSENSE about key secret"
        with refused("INTERNAL", grpc.StatusCode.INTERNAL) as said:
            await line.put(b"x")
        assert said.metadata["incident"]
        assert "secret" not in said.message
        assert "NONSENSE" not in said.message


async def test_a_refused_script_is_not_sent_again(serve: Serve, open_line: Open) -> None:
    async with RefusingStore(ERRORS["READONLY"]) as store:
        line = await open_line(await serve(store.url), "jobs")
        before = store.scripts
        with refused("STORE_UNAVAILABLE"):
            await line.put(b"x")
        assert store.scripts == before + 1


# -- real ones ------------------------------------------------------------------------------------------------------


async def test_a_primary_that_becomes_a_replica_refuses_writes_until_it_is_one_again(
    line: Line, fresh_store_server: StoreServer
) -> None:
    await line.create()
    await line.put(b"before")
    lease = (await line.take_one(lease_ms=60_000)).lease
    with fresh_store_server.client() as client:
        client.replicaof("127.0.0.1", "1")  # nobody there
        async for answer in ask_each(line, lease):
            if answer.name not in LOOKS_FIRST:
                assert_unavailable(answer, "READONLY", within_s=1.0)
        for answer in await ask_all(line, lease):
            if answer.name not in LOOKS_FIRST:
                assert_unavailable(answer, "READONLY", within_s=1.0)
        client.replicaof("NO", "ONE")
    await eventually(lambda: works(line), within=3.0)
    assert await line.ack(lease) == [ACKED]
    assert payloads(await line.take(1)) == [b"works"]


async def test_a_store_that_cannot_save_refuses_writes_until_it_can(
    line: Line, fresh_store_server: StoreServer
) -> None:
    await line.create()
    await line.put(b"before")
    in_the_way = fresh_store_server.folder / "dump.rdb"
    with fresh_store_server.client() as client:
        client.config_set("save", "3600 1")
        in_the_way.unlink(missing_ok=True)
        in_the_way.mkdir()

        def save_status() -> str:
            return str(client.info("persistence")["rdb_last_bgsave_status"])

        client.bgsave()
        await eventually(lambda: save_status() == "err")
        async for answer in ask_each(line, ""):
            if answer.name not in LOOKS_FIRST:
                assert_unavailable(answer, "MISCONF", within_s=1.0)
        in_the_way.rmdir()
        client.bgsave()
        await eventually(lambda: save_status() == "ok")
        client.config_set("save", "")
    assert await works(line)
    assert payloads(await line.take(2)) == [b"before", b"works"]


async def test_a_store_with_too_few_replicas_takes_nothing_that_it_could_lose(
    line: Line, fresh_store_server: StoreServer
) -> None:
    await line.create()
    with fresh_store_server.client() as client:
        client.config_set("min-replicas-to-write", 1)
        with refused("NOT_DURABLE", UNAVAILABLE) as said:
            await line.put(b"refused")
        assert said.retry_delay
        assert (await line.counts()).accepted == 0
        client.config_set("min-replicas-to-write", 0)
    assert await works(line)


async def test_a_store_busy_with_an_endless_script_says_busy_and_a_waiting_get_waits_it_out(
    line: Line, fresh_store_server: StoreServer
) -> None:
    await line.create()
    waiting = asyncio.create_task(line.get(wait_ms=20_000))

    async def one_waits() -> bool:
        return (await line.counts()).consumers_waiting == 1

    await eventually(one_waits)
    with fresh_store_server.client() as client, fresh_store_server.client(timeout_s=30) as stuck:
        client.config_set("busy-reply-threshold", 50)

        def spin() -> None:
            with pytest.raises(redis.ResponseError):
                stuck.eval("while true do end", 0)

        spinning = threading.Thread(target=spin)
        spinning.start()
        try:
            await eventually(lambda: is_busy(client))
            async for answer in ask_each(line, ""):
                assert_unavailable(answer, "BUSY", within_s=1.0)
        finally:
            client.script_kill()
            await asyncio.to_thread(spinning.join, 10)
    await eventually(lambda: works(line), within=3.0)
    assert payloads((await waiting).deliveries) == [b"works"]


def is_busy(client: redis.Redis) -> bool:
    try:
        client.ping()
    except redis.ResponseError as error:
        return str(error).startswith("BUSY")
    return False


@pytest.mark.long
async def test_nobody_notices_that_the_store_forgot_its_scripts(
    line: Line, fresh_store_server: StoreServer, figure: Callable[[str, str], None]
) -> None:
    await line.create()
    flushes = 0
    with fresh_store_server.client() as client:

        async def produce() -> None:
            for number in range(100):
                await line.put(b"%d" % number)

        async def consume() -> list[bytes]:
            got: list[bytes] = []
            while len(got) < 100:
                delivery = await line.take_one(wait_ms=5_000)
                got.append(delivery.message.payload)
                assert await line.ack(delivery.lease) == [ACKED]
            return got

        producing, consuming = asyncio.create_task(produce()), asyncio.create_task(consume())
        while not (producing.done() and consuming.done()):
            client.script_flush()
            flushes += 1
            await asyncio.sleep(0.001)
        await producing
        assert await consuming == [b"%d" % number for number in range(100)]
    figure("scripts forgotten during 100 messages", f"{flushes} times")


async def test_many_calls_at_once_whose_script_the_store_forgot_are_each_done_once(
    line: Line, fresh_store_server: StoreServer
) -> None:
    await line.create()
    with fresh_store_server.client() as client:
        client.script_flush()
    await asyncio.gather(*(line.put(b"x") for _ in range(50)))
    assert (await line.counts()).accepted == 50
