"""A Get that is named can be made again: it gives what it gave before, as long as that lives."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable

import grpc
import pytest

from harness import FaultProxy, ServiceProcess, StoreServer, error_of, eventually, refused
from headway.v1 import message_pb2
from wire.calls import ACKED, INVALID_ARGUMENT, RELEASED, Delivery, Keys, Line, leases, line_at, now_ms, payloads
from wire.conditions import consumers_wait, leased
from wire.operators import assert_sound
from wire.test_outcomes import entries
from wire.test_pause import pause


async def attempt(
    line: Line, name: str, max_messages: int = 1, *, wait_ms: float = 0, lease_ms: float | None = None, **fields: object
) -> list[Delivery]:
    """What a Get of this name gives."""
    answer = await line.get(max_messages, wait_ms=wait_ms, lease_ms=lease_ms, attempt_id=name, **fields)
    return list(answer.deliveries)


async def filled(line: Line, count: int = 10, **policy: object) -> None:
    await line.create(**policy)
    await line.put(*(b"%d" % number for number in range(count)))


async def test_the_same_again_gives_the_same_leases(line: Line) -> None:
    await filled(line)
    first = await attempt(line, "a", 3)
    assert payloads(first) == [b"0", b"1", b"2"]
    for _ in range(3):
        again = await attempt(line, "a", 3)
        assert leases(again) == leases(first)
        assert payloads(again) == payloads(first)
        assert [d.attempt for d in again] == [1, 1, 1]
        assert [d.lease_expires_at for d in again] == [d.lease_expires_at for d in first]
        assert [d.ticket for d in again] == [d.ticket for d in first]
    assert (await line.counts()).leased == 3
    assert await line.ack(*leases(first)) == [ACKED] * 3
    await assert_sound(line)


async def test_everything_of_a_message_is_given_again(line: Line) -> None:
    await line.create()
    await line.put(message_pb2.Message(id="one", payload=b"body", headers={"h": "1"}))
    [first], [again] = await attempt(line, "a"), await attempt(line, "a")
    assert first.message == again.message
    assert (again.message.id, again.put_at) == ("one", first.put_at)


async def test_other_names_are_given_other_messages(line: Line) -> None:
    await filled(line)
    one, other = await attempt(line, "a", 2), await attempt(line, "b", 2)
    unnamed = list((await line.get(2)).deliveries)
    assert payloads([*one, *other, *unnamed]) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert leases(await attempt(line, "a", 2)) == leases(one)
    assert leases(await attempt(line, "b", 2)) == leases(other)
    assert (await line.counts()).leased == 6


async def test_after_an_ack_of_some_only_the_rest_is_given_again(line: Line) -> None:
    await filled(line)
    first = await attempt(line, "a", 4)
    await line.ack(first[1].lease)
    await line.delay(first[3].lease, delay_ms=0)
    again = await attempt(line, "a", 4)
    assert leases(again) == [first[0].lease, first[2].lease]
    await assert_sound(line)


@pytest.mark.parametrize("end", ["acked", "given back", "lapsed", "acked in the same call"])
async def test_when_none_of_its_leases_lives_the_name_gives_new_ones(line: Line, end: str) -> None:
    await filled(line, 4)
    first = await attempt(line, "a", 2, lease_ms=150)
    acked_with_it: list[str] = []
    match end:
        case "acked":
            await line.ack(*leases(first))
        case "given back":
            await line.delay(*leases(first), delay_ms=0)
        case "lapsed":
            await eventually(lambda: leased(line, 0))
        case _:
            acked_with_it = leases(first)
    second = await attempt(line, "a", 2, ack=acked_with_it)
    assert not set(leases(first)) & set(leases(second))
    assert payloads(second) == ([b"2", b"3"] if end.startswith("acked") else [b"0", b"1"])
    assert leases(await attempt(line, "a", 2)) == leases(second)
    await assert_sound(line)


async def test_extending_keeps_the_attempt_alive(line: Line, keys: Keys) -> None:
    await filled(line)
    [first] = await attempt(line, "a", lease_ms=1_500)
    await line.extend(first.lease, lease_ms=60_000)
    await eventually(lambda: now_ms(keys.client) > first.lease_expires_at.ToMilliseconds())
    [again] = await attempt(line, "a")
    assert again.lease == first.lease
    assert again.lease_expires_at.ToMilliseconds() > first.lease_expires_at.ToMilliseconds() + 30_000


async def test_a_get_that_gave_nothing_gives_what_there_is_when_it_is_made_again(line: Line) -> None:
    await line.create()
    assert await attempt(line, "a") == []
    await line.put(b"one")
    assert payloads(await attempt(line, "a")) == [b"one"]


async def test_a_name_belongs_to_its_queue_and_its_life(line: Line) -> None:
    await filled(line)
    [first] = await attempt(line, "a")
    await line.delete()
    await filled(line)
    [second] = await attempt(line, "a")
    assert second.lease != first.lease
    assert payloads([second]) == [b"0"]


async def test_a_waiting_get_can_be_named(line: Line) -> None:
    await line.create()
    waiting = asyncio.create_task(attempt(line, "a", 2, wait_ms=20_000))
    await eventually(lambda: consumers_wait(line, 1))
    await line.put(b"one", b"two")
    first = await asyncio.wait_for(waiting, 10)
    assert payloads(first) == [b"one", b"two"]
    assert leases(await attempt(line, "a", 2, wait_ms=20_000)) == leases(first)
    await line.ack(*leases(first))
    waiting = asyncio.create_task(attempt(line, "a", wait_ms=20_000))
    await eventually(lambda: consumers_wait(line, 1))
    await line.put(b"three")
    assert payloads(await asyncio.wait_for(waiting, 10)) == [b"three"]


async def test_a_repeat_need_not_stand_behind_others_that_wait(line: Line) -> None:
    await line.create(limit=1)
    await line.put(b"one", b"two")
    [first] = await attempt(line, "a")
    other = asyncio.create_task(line.get(wait_ms=20_000))
    await eventually(lambda: consumers_wait(line, 1))
    for wait_ms in (0, 10_000):
        [again] = await asyncio.wait_for(attempt(line, "a", wait_ms=wait_ms), 5)
        assert again.lease == first.lease
    await line.ack(first.lease)
    assert payloads((await asyncio.wait_for(other, 10)).deliveries) == [b"two"]


async def test_a_repeat_that_asks_for_fewer_is_given_no_more_than_what_lives(line: Line) -> None:
    await filled(line)
    first = await attempt(line, "a", 4)
    assert set(leases(await attempt(line, "a", 2))) <= set(leases(first))
    assert set(leases(await attempt(line, "a", 8))) == set(leases(first))
    assert (await line.counts()).leased == 4


async def test_a_repeat_of_a_large_batch_is_given_whole(line: Line) -> None:
    await line.create()
    await line.put(*(b"x" * 1_000 for _ in range(1_000)))
    first = await attempt(line, "a", 1_000)
    assert len(first) == 1_000
    assert leases(await attempt(line, "a", 1_000)) == leases(first)


async def test_a_repeat_by_another_caller_at_the_same_time_shares_the_leases(line: Line) -> None:
    await filled(line)
    answers = await asyncio.gather(*(attempt(line, "a", 2) for _ in range(20)))
    assert {tuple(leases(answer)) for answer in answers} == {tuple(leases(answers[0]))}
    assert (await line.counts()).leased == 2


async def test_a_repeat_does_not_count_as_a_delivery(line: Line) -> None:
    await filled(line, 1, retry={"max_attempts": 2})
    for _ in range(5):
        [delivery] = await attempt(line, "a")
        assert delivery.attempt == 1
    [result] = await line.delay(delivery.lease, delay_ms=0)
    assert (result.settled, result.attempts) == (RELEASED, 1)


async def test_a_paused_queue_gives_again_what_it_gave_or_nothing_new(line: Line) -> None:
    await filled(line)
    first = await attempt(line, "a", 2)
    await pause(line)
    with contextlib.suppress(grpc.aio.AioRpcError):
        assert leases(await attempt(line, "a", 2)) == leases(first)
    assert (await line.counts()).leased == 2


async def test_a_lost_answer_is_asked_for_again(
    fresh_store_server: StoreServer,
    make_service: Callable[..., ServiceProcess],
    connect: Callable[[str], grpc.aio.Channel],
) -> None:
    """The store leased, and its reply got lost: OUTCOME_UNKNOWN. The same again brings the leases."""
    async with FaultProxy(fresh_store_server.port) as proxy:
        service = await asyncio.to_thread(lambda: make_service(HEADWAY_REDIS_URL=proxy.url))
        async with line_at(service.address, f"lost-{uuid.uuid4().hex[:8]}", connect) as line:
            await filled(line)
            proxy.drop_replies = 1.0
            with pytest.raises(grpc.aio.AioRpcError) as lost:
                await attempt(line, "a", 3)
            assert error_of(lost.value).reason == "OUTCOME_UNKNOWN"
            proxy.drop_replies = 0.0

            async def again() -> list[Delivery]:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    return await attempt(line, "a", 3)
                return []

            deliveries = await eventually(again, within=10)
            assert payloads(deliveries) == [b"0", b"1", b"2"]
            assert [delivery.attempt for delivery in deliveries] == [1, 1, 1]
            assert (await line.counts()).leased == 3
            assert await line.ack(*leases(deliveries)) == [ACKED] * 3
        await asyncio.to_thread(service.stop)


@pytest.mark.parametrize("bad", ["x" * 201, "a\n", "\x00", "é" * 101], ids=ascii)
async def test_a_name_that_is_none_is_refused_and_nothing_leased(line: Line, bad: str) -> None:
    await filled(line)
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await attempt(line, bad)
    assert list(said.violations) == ["attempt_id"]
    assert (await line.counts()).leased == 0


@pytest.mark.parametrize("good", ["x" * 200, "é" * 100, "*", "a:b:closed", "~", "%s"], ids=ascii)
async def test_any_other_text_is_a_name(line: Line, good: str) -> None:
    await filled(line)
    first = await attempt(line, good)
    assert leases(await attempt(line, good)) == leases(first)
    await assert_sound(line)


async def test_names_are_forgotten_with_their_leases(line: Line, keys: Keys) -> None:
    await line.create(remember={"nanos": 100_000_000}, dedupe_window={"nanos": 0})
    await line.put(b"x")
    await line.ack((await attempt(line, "first"))[0].lease)
    before = entries(keys)
    for number in range(300):
        await line.put(b"x")
        await line.ack((await attempt(line, f"a{number}"))[0].lease)

    async def forgotten() -> bool:
        await line.put(b"x")
        await line.ack((await attempt(line, "last"))[0].lease)
        return entries(keys) <= before + 20

    await eventually(forgotten, within=15)
