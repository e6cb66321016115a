"""A cluster of three primaries and their replicas: queues are spread over it, nodes fail and slots move under load."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from functools import partial

import grpc
import pytest

from cluster.conftest import Open, Serve
from cluster.load import load_on, times_of
from harness import error_of, eventually, refused
from harness.batches import batches_put, drained, gates_tried
from harness.engines import DETECTION_S, ClusterOfSix
from headway.v1 import queue_service_pb2
from wire.calls import INVALID_ARGUMENT, Line, payloads
from wire.operators import redrive

Figure = Callable[[str, str], None]
# What the service may take from the moment when the other nodes name another primary. On a busy machine, more.
RECOVERY_S, MARGIN_S = 2.0, 5.0
KEY = "__pressure__:{jobs}"


async def test_queues_are_spread_over_the_nodes_and_listed_as_one(
    cluster: ClusterOfSix, serve: Serve, open_line: Open
) -> None:
    service = await serve(cluster.url)
    names = [f"queue {number}: ä" for number in range(20)]
    for name in names:
        line = await open_line(service, name)
        await line.create()
        await line.put(name.encode())
    assert {cluster.primary_of(f"__pressure__:{{{name}}}").port for name in names} == {
        node.port for node in cluster.nodes[:3]
    }
    listed = await line.stub.List(queue_service_pb2.ListRequest(), timeout=10)
    assert sorted(queue.name for queue in listed.queues) == sorted(names)
    for name in names:
        line = await open_line(service, name)
        assert payloads(await line.take(1)) == [name.encode()]
        await line.delete()
    for node in cluster.nodes:
        with node.client() as client:
            assert client.dbsize() == 0


async def test_a_name_with_braces_is_refused(cluster: ClusterOfSix, serve: Serve, open_line: Open) -> None:
    service = await serve(cluster.url)
    for name in ("{a", "a}", "{a}"):
        line = await open_line(service, name)
        with refused("NAME_REFUSED", INVALID_ARGUMENT) as said:
            await line.create()
        assert "brace" in said.message
    line = await open_line(service, "a")
    await line.create()
    with refused("NAME_REFUSED", INVALID_ARGUMENT) as said:
        await redrive(line, to="{a}")
    assert said.metadata == {"field": "to_queue"}
    assert list(said.violations) == ["to_queue"]


async def test_a_foreign_queue_with_further_braces_in_its_name_disturbs_nobody(
    cluster: ClusterOfSix, serve: Serve, open_line: Open
) -> None:
    line = await open_line(await serve(cluster.url), "jobs")
    await line.create()
    for name in ("{acme}:{mail}", "{{x}}"):
        base = f"__pressure__:{name}"
        with cluster.primary_of(base).client() as client:
            client.set(f"{base}:bound", 0)
    listed = await line.stub.List(queue_service_pb2.ListRequest(), timeout=10)
    assert [queue.name for queue in listed.queues] == ["jobs"]


async def test_consumers_and_producers_of_two_processes_wake_each_other(
    cluster: ClusterOfSix, serve: Serve, open_line: Open, figure: Figure
) -> None:
    """On every node, and not by the safety checks, which come after 5 s."""
    one, other = await serve(cluster.url), await serve(cluster.url)
    longest_s = 0.0
    for number in range(6):
        here, there = await open_line(one, f"q{number}"), await open_line(other, f"q{number}")
        await here.create(bound=1)
        getting = asyncio.create_task(here.get(wait_ms=30_000))
        await eventually(partial(_waits, there, consumers=1))
        began = time.monotonic()
        await there.put(b"first")
        assert payloads((await getting).deliveries) == [b"first"]
        longest_s = max(longest_s, time.monotonic() - began)
        await there.put(b"second")
        putting = asyncio.create_task(there.put(b"third", wait_ms=30_000))
        await eventually(partial(_waits, here, producers=1))
        began = time.monotonic()
        assert payloads(await here.take(1)) == [b"second"]
        await putting
        longest_s = max(longest_s, time.monotonic() - began)
    figure("in a cluster one process wakes another after", f"{longest_s * 1000:.0f} ms at most, of 12")
    assert longest_s < 3.0


async def _waits(line: Line, *, consumers: int = 0, producers: int = 0) -> bool:
    counts = await line.counts()
    return (counts.consumers_waiting, counts.producers_waiting) == (consumers, producers)


@pytest.mark.parametrize("how", ["kill", "pause"])
async def test_no_acknowledged_message_is_lost_when_a_primary_fails_under_load(
    cluster: ClusterOfSix, serve: Serve, open_line: Open, how: str, figure: Figure
) -> None:
    line = await open_line(await serve(cluster.url, HEADWAY_DURABILITY="replicated"), "jobs")
    assert (await line.create()).queue.durability == "replicated"
    # The replica that takes over must have one of its own to write: so one is lent to it from another shard.
    old = cluster.primary_of(KEY)
    await asyncio.to_thread(cluster.lend_replica_to, old)
    async with load_on(line) as books:
        failed_at = time.monotonic()
        old.kill() if how == "kill" else old.pause()
        await eventually(lambda: cluster.primary_of(KEY) is not old, within=30)
        named_at = time.monotonic()
        await eventually(lambda: max(books.accepted.values()) > named_at, within=RECOVERY_S + MARGIN_S)
        if how == "pause":
            old.resume()
    assert books.lost == set()
    first = min(at for at in books.accepted.values() if at > named_at)
    figure(f"cluster, {how}: another primary is named after", f"{named_at - failed_at:.1f} s")
    figure(f"cluster, {how}: first Put accepted after that", f"{first - named_at:.2f} s")
    figure(f"cluster, {how}: longest outage", f"{books.longest_outage_s:.1f} s, silence counts from {DETECTION_S} s")
    figure(f"cluster, {how}: errors meanwhile", times_of(books))
    figure(f"cluster, {how}: accepted, none lost", f"{len(books.accepted)} messages")


@pytest.mark.smoke
async def test_nothing_is_put_on_a_primary_that_was_silent_while_the_others_said_what_they_keep(
    cluster: ClusterOfSix, serve: Serve, open_line: Open
) -> None:
    silent = cluster.primary_of(KEY)
    for node in cluster.nodes:
        with node.client() as client:
            client.config_set("cluster-node-timeout", 120_000)  # nobody takes its place
            client.config_set("min-replicas-to-write", 0)
            client.config_set("appendfsync", "everysec" if node is silent else "always")
    silent.pause()
    service = await serve(cluster.url, HEADWAY_DURABILITY="always")
    line = await open_line(service, "jobs")
    other = next(f"q{n}" for n in range(99) if cluster.primary_of(f"__pressure__:{{q{n}}}") is not silent)
    assert (await (await open_line(service, other)).create()).queue.durability == "always"
    silent.resume()

    async def is_not_durable() -> bool:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await line.create()
        return error_of(caught.value).reason == "NOT_DURABLE"

    await eventually(is_not_durable, within=20)
    with silent.client() as client:
        client.config_set("appendfsync", "always")

    async def is_created() -> bool:
        with contextlib.suppress(grpc.aio.AioRpcError):
            await line.create()
            return True
        return False

    await eventually(is_created, within=20)


@pytest.mark.slow
@pytest.mark.smoke
async def test_slots_that_move_under_load_are_followed(
    cluster: ClusterOfSix, serve: Serve, open_line: Open, figure: Figure
) -> None:
    line = await open_line(await serve(cluster.url), "jobs")
    await line.create()
    async with load_on(line) as books:

        def has_grown(before: int) -> bool:
            return len(books.accepted) > before + 20

        for number in range(6):
            slot, source, target = cluster.slot_to_move(KEY)
            done_before = len(books.accepted)
            # Redis 7 knows the first way only.
            is_at_once = number % 2 == 1 and source.kind == "valkey"
            move = cluster.move_slot_at_once if is_at_once else cluster.move_slot
            await asyncio.to_thread(move, slot, source, target)
            await eventually(partial(has_grown, done_before), within=10)
    assert books.lost == set()
    counts = await line.counts()
    assert counts.acked == counts.accepted == len(books.accepted)
    figure("slot moved 6 times: longest time without a Put", f"{books.longest_outage_s * 1000:.0f} ms")
    figure("slot moved 6 times: errors meanwhile", times_of(books))


@pytest.mark.slow
async def test_large_batches_stay_whole_while_their_slot_moves(
    cluster: ClusterOfSix, serve: Serve, open_line: Open, figure: Figure
) -> None:
    line = await open_line(await serve(cluster.url), "jobs")
    await line.create()
    async with batches_put(line) as batches:
        for _ in range(4):
            before = len(batches.accepted)
            await asyncio.to_thread(cluster.move_slot, *cluster.slot_to_move(KEY))
            await eventually(partial(batches.are_more, before + 5), within=20)
    assert gates_tried(*cluster.nodes[:3]) > 10
    batches.assert_whole(await drained(line))
    figure("slot moved 4 times: batches", f"{len(batches.accepted)} accepted, {len(batches.unknown)} not known")


async def test_those_who_wait_follow_a_slot_that_moves(
    cluster: ClusterOfSix, serve: Serve, open_line: Open, figure: Figure
) -> None:
    one, other = [await open_line(await serve(cluster.url), "jobs") for _ in range(2)]
    await one.create()
    getting = asyncio.create_task(one.get(wait_ms=30_000))
    await eventually(lambda: _waits(other, consumers=1))
    await asyncio.to_thread(cluster.move_slot, *cluster.slot_to_move(KEY))
    began = time.monotonic()
    await other.put(b"after")
    assert payloads((await getting).deliveries) == [b"after"]
    took_s = time.monotonic() - began
    figure("waiting Get served after its slot moved", f"{took_s * 1000:.0f} ms after the Put")
    assert took_s < 3.0
