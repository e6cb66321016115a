"""The numbers that /metrics tells are those of what was done."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc
import httpx
import pytest

from harness import ServiceProcess, StoreServer, eventually, scraping
from harness.scraping import Scraped, scrape
from harness.stores import free_port
from headway.v1 import message_pb2, queue_pb2, queue_service_pb2
from headwayd.engine.counting.counts import OTHERS
from headwayd.rpc.server import ADMIN_SERVICE, QUEUE_SERVICE
from headwayd.telemetry import metric_names
from wire.calls import GONE, RESOURCE_EXHAUSTED, Line, leases, line_at, span
from wire.flows import Consuming, Producing
from wire.streams import Standing

MakeService = Callable[..., ServiceProcess]
HOUR_MS = 3_600_000
CENSUS_S = 10.0  # the state of queues is at most three seconds old
HTTP = {"HEADWAY_HTTP_LISTEN": "127.0.0.1:0"}


@pytest.fixture
def watched(make_service: MakeService, store_server: StoreServer) -> ServiceProcess:
    """A service of this test's own, with an HTTP port; its queues are nobody else's."""
    return make_service(HEADWAY_REDIS_URL=store_server.url, PRESSURE_PREFIX=f"__m_{uuid.uuid4().hex[:8]}__", **HTTP)


@pytest.fixture
async def jobs(watched: ServiceProcess, connect: Callable[[str], grpc.aio.Channel]) -> AsyncIterator[Line]:
    async with line_at(watched.address, "jobs", connect) as line:
        yield line


def states(scraped: Scraped) -> dict[str, float]:
    return dict(scraped.by("state", "queue_messages", queue="jobs"))


async def test_every_message_is_counted_as_what_became_of_it(watched: ServiceProcess, jobs: Line) -> None:
    await jobs.create(bound=12, retry=queue_pb2.Retry(max_attempts=1), lease=span(HOUR_MS))
    await jobs.put(*(message_pb2.Message(id=f"id-{n}", payload=b"x") for n in range(10)))
    again = message_pb2.Message(id="id-3", payload=b"x")
    await jobs.put(again, on_duplicate=message_pb2.ON_DUPLICATE_KEEP)
    results = (await jobs.put(*(b"%d" % n for n in range(5)))).results
    assert [bool(one.error.code) for one in results] == [False, False, True, True, True]
    with pytest.raises(grpc.aio.AioRpcError):
        await jobs.put(message_pb2.Message(id="id-3", payload=b"x"))
    taken = leases(await jobs.take(4))
    await jobs.ack(*taken[:2])
    await jobs.extend(taken[2])
    await jobs.delay(taken[2], delay_ms=0)  # its only attempt has failed
    await jobs.ack(taken[0])
    await jobs.put(message_pb2.Message(payload=b"x", delay=span(HOUR_MS)))

    told = await scrape(watched)
    assert states(told) == {"waiting": 8, "leased": 1, "delayed": 1, "dead": 1}
    assert told.value("messages_put_total", queue="jobs") == 13
    assert told.value("messages_deduplicated_total", queue="jobs") == 1
    assert told.by("reason", "puts_refused_total", queue="jobs") == {"QUEUE_FULL": 3, "DUPLICATE_MESSAGE": 1}
    assert told.value("messages_delivered_total", queue="jobs") == 4
    assert told.value("messages_redelivered_total", queue="jobs") == 0
    assert told.by("how", "messages_settled_total", queue="jobs") == {"acked": 2, "dead": 1, "already_acked": 1}
    assert told.value("messages_acked_total", queue="jobs") == 2
    assert told.value("wait_seconds_count", queue="jobs") == 4
    assert told.value("work_seconds_count", queue="jobs") == 2
    assert 0 < told.value("queue_oldest_age_seconds", queue="jobs") < 60
    assert told.value("queues") == 1
    calls = {method: told.value("calls_total", method=method, code="OK") for method in ("Put", "Get", "Ack", "Delay")}
    assert calls == {"Put": 4, "Get": 1, "Ack": 2, "Delay": 1}
    assert told.by("code", "calls_total", method="Put") == {"OK": 4, "ALREADY_EXISTS": 1, "INTERNAL": 0}
    assert told.value("call_seconds_count", method="Put") == 5
    assert told.value("store_seconds_count", script="put") == 5
    assert told.value("store_together_sum") == told.value("store_together_count") > 0  # nobody came at the same time
    assert (told.value("ready"), told.value("store_reachable")) == (1, 1)
    assert told.sum("build_info") == 1
    await eventually(lambda: has_ticked(watched))


async def has_ticked(service: ServiceProcess) -> bool:
    """How late the event loop is is measured all the time."""
    return (await scrape(service)).value("event_loop_lag_seconds_count") > 2


async def test_a_message_that_comes_back_is_redelivered_only_if_it_had_failed(
    watched: ServiceProcess, jobs: Line
) -> None:
    await jobs.create()
    await jobs.put(b"1", b"2")
    first = await jobs.take_one()
    await jobs.delay(first.lease, delay_ms=0)
    assert (await jobs.take_one()).attempt == 2
    async with Standing(jobs) as stream:
        await stream.granted()
    assert (await jobs.take_one(wait_ms=5_000)).attempt == 1
    told = await scrape(watched)
    assert told.value("messages_delivered_total", queue="jobs") == 4
    assert told.value("messages_redelivered_total", queue="jobs") == 1
    assert told.by("how", "messages_settled_total", queue="jobs") == {"released": 1}
    assert told.by("cause", "leases_released_total") == {"stream_ended": 1}


async def test_leases_that_lapse_are_counted_and_those_that_are_settled_are_not(
    watched: ServiceProcess, jobs: Line
) -> None:
    await jobs.create(retry=queue_pb2.Retry(max_attempts=2))
    await jobs.put(*(b"%d" % number for number in range(4)))
    first, second = await jobs.take(2, lease_ms=60_000)
    await jobs.take(2, lease_ms=100)
    await jobs.ack(first.lease)
    await jobs.delay(second.lease, delay_ms=HOUR_MS)
    assert [one.attempt for one in await jobs.take(2, lease_ms=100, wait_ms=10_000)] == [2, 2]

    async def are_dead() -> bool:
        return (await jobs.counts()).dead == 2

    await eventually(are_dead, within=10)

    async def is_counted() -> bool:
        return (await scrape(watched)).value("leases_lapsed_total", queue="jobs") == 4

    await eventually(is_counted, within=CENSUS_S)


async def test_who_waits_and_who_watches_is_told(watched: ServiceProcess, jobs: Line) -> None:
    await jobs.create(bound=1)
    await jobs.put(message_pb2.Message(id="one", payload=b"1"))
    blocked = asyncio.create_task(jobs.put(b"2", wait_ms=60_000))
    request = queue_service_pb2.WatchPositionRequest(queue="jobs", messages=queue_service_pb2.MessageIds(ids=["one"]))
    watch: Any = jobs.stub.WatchPosition(request, timeout=60)
    assert (await watch.read()).position.position == 1

    async def are_told() -> bool:
        told = await scrape(watched)
        seen = told.value("watchers"), told.value("streams")
        assert told.value("position_lag_seconds_count") >= 1
        return seen == (1, 1) and told.by("line", "queue_waiters", queue="jobs") == {"consumers": 0, "producers": 1}

    await eventually(are_told, within=CENSUS_S)
    watch.cancel()
    await jobs.take_one()
    await blocked
    await jobs.take_one()
    waiting = asyncio.create_task(jobs.get(wait_ms=60_000))

    async def a_consumer_waits() -> bool:
        told = await scrape(watched)
        assert told.by("code", "calls_total", method="WatchPosition") == {"CANCELLED": 1, "INTERNAL": 0}
        seen = told.value("watchers"), told.value("streams")
        return seen == (0, 0) and told.by("line", "queue_waiters", queue="jobs") == {"consumers": 1, "producers": 0}

    await eventually(a_consumer_waits, within=CENSUS_S)
    waiting.cancel()


async def test_both_formats_tell_the_same(watched: ServiceProcess, jobs: Line) -> None:
    await jobs.create()
    await jobs.put(b"1")
    await jobs.take_one()
    plain, open_text = await scrape(watched), await scrape(watched, accept=scraping.OPEN)
    every = {metric.name for metric in metric_names.ALL}
    assert plain.names == open_text.names == every
    steady = {key for key in plain.samples if "event_loop" not in key[0] and "store_seconds" not in key[0]}
    assert steady
    assert {key: plain.samples[key] for key in steady} == {key: open_text.samples[key] for key in steady}


async def test_nothing_of_a_message_or_its_callers_is_told(watched: ServiceProcess, jobs: Line) -> None:
    secret = uuid.uuid4().hex
    await jobs.create(retry=queue_pb2.Retry(max_attempts=1))
    message = message_pb2.Message(id=f"id{secret}", payload=secret.encode(), headers={"h": secret})
    await jobs.put(message, producer=f"producer{secret}")
    delivery = (await jobs.get(consumer=f"consumer{secret}", attempt_id=f"attempt{secret}")).deliveries[0]
    await jobs.delay(delivery.lease, delay_ms=0, reason=f"because {secret}")
    await jobs.withdraw(f"id{secret}")
    with pytest.raises(grpc.aio.AioRpcError):
        await Line(jobs.stub, f"nothing-{secret}").put(b"1")
    with pytest.raises(grpc.aio.AioRpcError):
        await Line(jobs.stub, f"nothing-{secret}").get()
    assert await Line(jobs.stub, f"nothing-{secret}").ack(delivery.lease) == [GONE]
    told = await scrape(watched)
    assert secret not in told.text
    assert delivery.lease not in told.text
    assert told.by("reason", "puts_refused_total", queue=OTHERS) == {"QUEUE_NOT_FOUND": 1}


async def test_a_deleted_queue_has_no_series_any_more(watched: ServiceProcess, jobs: Line) -> None:
    await jobs.create()
    await jobs.put(b"1")
    assert "jobs" in (await scrape(watched)).queues
    await jobs.delete()

    async def is_gone() -> bool:
        return "jobs" not in (await scrape(watched)).queues

    await eventually(is_gone, within=CENSUS_S)


async def test_names_with_quotes_backslashes_and_letters_of_all_kinds_stay_themselves(
    watched: ServiceProcess, connect: Callable[[str], grpc.aio.Channel]
) -> None:
    hostile = ['a"b', "a\\b", "a\\nb", "ü,{}=🐴", "(others)", " "]
    async with AsyncExitStack() as stack:
        for name in hostile:
            line = await stack.enter_async_context(line_at(watched.address, name, connect))
            await line.create()
            await line.put(b"1")
    for accept in ("", scraping.OPEN):
        told = await scrape(watched, accept=accept)
        assert {name: told.value("messages_put_total", queue=name) for name in hostile} == dict.fromkeys(hostile, 1)
        assert {name: told.value("queue_messages", queue=name, state="waiting") for name in hostile} == dict.fromkeys(
            hostile, 1
        )


async def fill(service: ServiceProcess, count: int, connect: Callable[[str], grpc.aio.Channel]) -> None:
    """So many queues with a message each."""
    async with line_at(service.address, "", connect) as line:
        places = asyncio.Semaphore(50)

        async def one(number: int) -> None:
            async with places:
                queue = Line(line.stub, f"queue-{number}")
                await queue.create()
                await queue.put(b"1")

        await asyncio.gather(*map(one, range(count)))


@pytest.mark.any_store
@pytest.mark.parametrize(
    "count", [pytest.param(60), pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(300)])]
)
async def test_many_queues_make_few_series_and_none_is_left_out_of_the_sums(
    count: int,
    make_service: MakeService,
    fresh_store_server: StoreServer,
    connect: Callable[[str], grpc.aio.Channel],
    figure: Callable[[str, str], None],
) -> None:
    service = make_service(
        HEADWAY_REDIS_URL=fresh_store_server.url,
        HEADWAY_METRICS_QUEUES="10",
        HEADWAY_LOG_LEVEL="warning",
        HEADWAY_STORE_TIMEOUT="2s",  # every put counts, however busy the machine
        **HTTP,
    )
    await fill(service, count, connect)

    async def counted() -> Scraped:
        """So many names may take a busy machine longer than a scrape waits for them."""
        told = await scrape(service)
        assert told.has("queues")
        assert told.value("queues") == count
        return told

    told = await eventually(counted, within=60)
    assert len(told.queues) == 11
    assert told.sum("messages_put_total") == count
    assert told.value("messages_put_total", queue=OTHERS) == count - 10
    others = told.by("queue", "queue_messages", state="waiting").get(OTHERS)
    assert others == (
        count - 10 if count <= 210 else None
    )  # of many, each look takes the next few, and none tells a part
    assert len(told.samples) < 1_000
    figure(f"series of {count} queues, 10 of which have their own", str(len(told.samples)))


async def test_without_the_store_the_process_tells_of_itself_and_that_the_store_is_away(
    make_service: MakeService, fresh_store_server: StoreServer, connect: Callable[[str], grpc.aio.Channel]
) -> None:
    service = make_service(HEADWAY_REDIS_URL=fresh_store_server.url, **HTTP)
    async with line_at(service.address, "jobs", connect) as line:
        await line.create()
        await line.put(b"1")
        assert (await scraping.fetch(service, "/readyz")).status_code == 200
        for take_away, bring_back in (
            (fresh_store_server.pause, fresh_store_server.resume),
            (fresh_store_server.kill, fresh_store_server.start),
        ):
            take_away()

            async def is_told() -> bool:
                async with asyncio.timeout(3):  # about one second, however silent the store is
                    told = await scrape(service)
                assert told.value("messages_put_total", queue="jobs") == 1
                assert (await scraping.fetch(service, "/healthz")).status_code == 200
                is_ready = (await scraping.fetch(service, "/readyz")).status_code == 200
                assert told.value("store_reachable") == 0
                assert not told.has("queue_messages")
                return told.value("ready") == 0 and not is_ready

            await eventually(is_told, within=20)
            bring_back()

            async def is_back() -> bool:
                told = await scrape(service)
                return told.value("ready") == told.value("store_reachable") == told.value("queues") == 1

            await eventually(is_back, within=20)


async def test_defects_are_told_of_every_method_before_there_is_one(watched: ServiceProcess) -> None:
    methods = {method.name for service in (QUEUE_SERVICE, ADMIN_SERVICE) for method in service.methods}
    assert (await scrape(watched)).by("method", "calls_total", code="INTERNAL") == dict.fromkeys(methods, 0)


async def test_a_process_that_knows_no_queue_tells_that_the_store_is_away(make_service: MakeService) -> None:
    told = await scrape(make_service(HEADWAY_REDIS_URL=f"redis://127.0.0.1:{free_port()}/0", **HTTP))
    assert told.value("store_reachable") == 0
    assert not told.has("queues")


async def test_a_refusal_for_want_of_room_is_counted_once_for_a_call_that_is_refused_as_a_whole(
    watched: ServiceProcess, jobs: Line
) -> None:
    await jobs.create(bound=1)
    await jobs.put(b"1")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await jobs.put(b"2", b"3")
    assert refused.value.code() is RESOURCE_EXHAUSTED
    told = await scrape(watched)
    assert told.by("reason", "puts_refused_total", queue="jobs") == {"QUEUE_FULL": 2}
    assert told.by("code", "calls_total", method="Put") == {"OK": 1, "RESOURCE_EXHAUSTED": 1, "INTERNAL": 0}


async def test_what_streams_do_counts_like_any_other(watched: ServiceProcess, jobs: Line) -> None:
    await jobs.create(bound=3)
    async with Producing(jobs) as producing:
        batches = [await producing.send(b"%d" % n, b"x") for n in range(3)]
        await producing.answer(batches[0])
        async with Consuming(jobs, messages=10) as consuming:
            for batch in batches:
                assert not any(result.error.code for result in await producing.answer(batch))
            taken = await consuming.tokens(6)
            await consuming.ack(*taken[:4])
            await eventually(lambda: len(consuming.settled) == 4)
        await eventually(lambda: all_are_back(jobs))
    [again] = (await jobs.get()).deliveries
    await jobs.get(ack=[again.lease])

    async def is_told() -> bool:
        told = await scrape(watched)
        assert told.value("messages_put_total", queue="jobs") == 6
        assert not told.has("puts_refused_total")  # who waited for room was not refused
        assert told.value("messages_delivered_total", queue="jobs") == 8
        assert told.by("how", "messages_settled_total", queue="jobs") == {"acked": 5}
        assert told.value("work_seconds_count", queue="jobs") == 5
        assert told.value("streams") == 0
        return told.by("cause", "leases_released_total") == {"stream_ended": 2}

    await eventually(is_told, within=CENSUS_S)


async def all_are_back(line: Line) -> bool:
    return (await line.counts()).length == 2


async def test_calls_by_the_http_port_are_counted_like_those_by_grpc(watched: ServiceProcess, jobs: Line) -> None:
    await jobs.create()
    async with httpx.AsyncClient(base_url=watched.http, timeout=10) as client:
        for queue, status in (("jobs", 200), ("nothing", 404)):
            answer = await client.post("/headway.v1.QueueService/Describe", json={"queue": queue})
            assert answer.status_code == status, answer.text
    told = await scrape(watched)
    assert told.by("code", "calls_total", method="Describe") == {"OK": 1, "NOT_FOUND": 1, "INTERNAL": 0}
