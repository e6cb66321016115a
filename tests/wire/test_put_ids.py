"""Message ids in a Put: known ones are refused or kept, in every state and within the window."""

from __future__ import annotations

import asyncio

import pytest

from harness import eventually, refused
from headway.v1 import error_reason_pb2, message_pb2
from wire.calls import ALREADY_EXISTS, RESOURCE_EXHAUSTED, Line, Message, named, payloads, span
from wire.operators import check

KEEP = message_pb2.ON_DUPLICATE_KEEP


async def test_a_known_id_is_refused_and_named(line: Line) -> None:
    await line.create()
    await line.put(named("one", b"first"))
    for on_duplicate in (message_pb2.ON_DUPLICATE_UNSPECIFIED, message_pb2.ON_DUPLICATE_REJECT):
        with refused("DUPLICATE_MESSAGE", ALREADY_EXISTS) as said:
            await line.put(named("one", b"second"), on_duplicate=on_duplicate)
        assert said.metadata == {"queue": line.name, "id": "one"}
    assert payloads(await line.take()) == [b"first"]
    assert (await line.counts()).accepted == 1


async def test_among_others_a_known_id_is_refused_by_itself(line: Line) -> None:
    await line.create()
    await line.put(named("one"))
    results = (await line.put(b"before", named("one"), b"after")).results
    assert [result.HasField("error") for result in results] == [False, True, False]
    error = results[1].error
    assert error.reason == error_reason_pb2.ERROR_REASON_DUPLICATE_MESSAGE
    assert error.code == ALREADY_EXISTS.value[0]
    assert dict(error.metadata) == {"queue": line.name, "id": "one"}
    assert results[1].id == "one"
    assert [result.position for result in results] == [2, 0, 3]
    assert (await line.counts()).length == 3


async def test_if_every_message_was_refused_for_the_same_reason_the_call_fails_with_it(line: Line) -> None:
    await line.create(bound=2)
    await line.put(named("one"), named("two"))
    with refused("DUPLICATE_MESSAGE", ALREADY_EXISTS) as said:
        await line.put(named("one"), named("two"))
    assert said.metadata["id"] in {"one", "two"}
    with refused("QUEUE_FULL", RESOURCE_EXHAUSTED):
        await line.put(b"x", b"y")


async def test_if_messages_were_refused_for_different_reasons_each_is_told_its_own(line: Line) -> None:
    await line.create(bound=1)
    await line.put(named("one"))
    results = (await line.put(named("one"), named("two"))).results
    assert [result.error.reason for result in results] == [
        error_reason_pb2.ERROR_REASON_DUPLICATE_MESSAGE,
        error_reason_pb2.ERROR_REASON_QUEUE_FULL,
    ]


async def test_an_id_given_twice_in_one_batch_is_accepted_once(line: Line) -> None:
    await line.create()
    results = (await line.put(named("one", b"first"), named("one", b"second"))).results
    assert [result.HasField("error") for result in results] == [False, True]
    results = (await line.put(named("two", b"first"), named("two", b"second"), on_duplicate=KEEP)).results
    assert [result.deduplicated for result in results] == [False, True]
    assert results[0].ticket == results[1].ticket
    assert payloads(await line.take(2)) == [b"first", b"first"]


async def test_keep_answers_with_the_message_that_is_there(line: Line) -> None:
    await line.create()
    await line.put(b"ahead", named("one", b"first"))
    [kept] = (await line.put(named("one", b"second"), on_duplicate=KEEP)).results
    assert (kept.id, kept.ticket, kept.position, kept.deduplicated) == ("one", 2, 2, True)
    await line.take()
    [kept] = (await line.put(named("one", b"third"), on_duplicate=KEEP)).results
    assert (kept.ticket, kept.position, kept.deduplicated) == (2, 1, True)
    assert payloads(await line.take()) == [b"first"]


@pytest.mark.parametrize("state", ["leased", "delayed", "returned", "acked", "dead"])
@pytest.mark.parametrize("keeps", [True, False])
async def test_an_id_is_known_in_every_state_of_its_message(line: Line, state: str, keeps: bool) -> None:
    await line.create()
    await line.update("retry.max_attempts", retry={"max_attempts": 1 if state == "dead" else 0})
    await line.put(named("one", b"first"))
    lease = (await line.take_one()).lease
    if state == "delayed":
        await line.delay(lease, delay_ms=600_000)
    elif state in {"returned", "dead"}:
        await line.delay(lease, delay_ms=0)
    elif state == "acked":
        await line.ack(lease)
    before = await line.counts()
    if keeps:
        [kept] = (await line.put(named("one", b"second"), on_duplicate=KEEP)).results
        assert (kept.id, kept.deduplicated, kept.HasField("error")) == ("one", True, False)
        assert kept.position == (1 if state == "returned" else 0)
    else:
        with refused("DUPLICATE_MESSAGE", ALREADY_EXISTS):
            await line.put(named("one", b"second"))
    after = await line.counts()
    assert (after.accepted, after.length) == (before.accepted, before.length)


async def test_an_id_is_free_again_after_the_dedupe_window(line: Line) -> None:
    await line.create(dedupe_window=span(1_500))
    await line.put(named("one"))
    await line.ack((await line.take_one()).lease)
    with refused("DUPLICATE_MESSAGE"):
        await line.put(named("one"))

    async def is_accepted() -> bool:
        results = (await line.put(b"filler", named("one"))).results
        return not results[1].HasField("error")

    await eventually(is_accepted, within=5)


async def test_without_a_dedupe_window_an_id_is_free_as_soon_as_its_message_is_done(line: Line) -> None:
    await line.create(dedupe_window=span(0))
    for _ in range(3):
        await line.put(named("one"))
        with refused("DUPLICATE_MESSAGE"):
            await line.put(named("one"))
        await line.ack((await line.take_one()).lease)


async def test_an_id_that_is_used_again_for_a_delayed_message_is_not_forgotten_with_the_one_before(line: Line) -> None:
    await line.create(dedupe_window=span(0))
    await line.put(named("one"))
    await line.ack((await line.take_one()).lease)
    await line.put(Message(id="one", payload=b"second", delay=span(600_000)))
    assert list((await check(line)).findings) == []


async def test_many_racing_puts_of_one_id_store_it_once(line: Line) -> None:
    await line.create()
    answers = await asyncio.gather(*(line.put(named("one"), on_duplicate=KEEP) for _ in range(50)))
    assert sorted(answer.results[0].deduplicated for answer in answers) == [False] + [True] * 49
    assert (await line.counts()).accepted == 1
