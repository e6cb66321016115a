"""Many calls at once on one queue go to the store together; each has its own answer, as if it had come alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

from harness import eventually, refused
from headway.v1 import message_pb2, queue_service_pb2
from wire.calls import ACKED, ALREADY_ACKED, GONE, SLACK_S, Line, Message, leases, payloads, span
from wire.conditions import consumers_wait, leased

MANY = 200
KEEP = message_pb2.ON_DUPLICATE_KEEP
REPLACE = message_pb2.ON_DUPLICATE_REPLACE


def all_refused(answers: Sequence[object], reason: str) -> None:
    assert answers
    for answer in answers:
        with refused(reason):
            assert isinstance(answer, BaseException)
            raise answer


def results_of(answers: Sequence[queue_service_pb2.PutResponse | BaseException]) -> list[message_pb2.PutResult]:
    """Of calls of one message each, none of which was refused."""
    refusals = [answer for answer in answers if isinstance(answer, BaseException)]
    assert not refusals, refusals[0]
    return [result for answer in answers if not isinstance(answer, BaseException) for result in answer.results]


async def test_each_put_has_its_own_ticket_and_position(line: Line) -> None:
    await line.create()
    answers = await asyncio.gather(*(line.put(*(b"%d" % n for _ in range(n % 3 + 1))) for n in range(MANY)))
    results = [list(answer.results) for answer in answers]
    flat = list(chain.from_iterable(results))
    assert [len(one) for one in results] == [n % 3 + 1 for n in range(MANY)]
    assert sorted(one.ticket for one in flat) == list(range(1, len(flat) + 1))
    assert all(one.ticket == one.position for one in flat)
    by_ticket = sorted((one.ticket, b"%d" % n) for n, batch in enumerate(results) for one in batch)
    assert [one.message.payload for one in await line.peek(len(flat))] == [payload for _, payload in by_ticket]


async def test_of_the_same_id_put_at_once_one_is_accepted(line: Line) -> None:
    await line.create()
    messages = [Message(id=f"m{n % 20}", payload=b"x") for n in range(MANY)]
    answers = await asyncio.gather(*(line.put(one, on_duplicate=KEEP) for one in messages))
    assert Counter(answer.results[0].deduplicated for answer in answers) == {False: 20, True: MANY - 20}
    again = await asyncio.gather(*(line.put(one) for one in messages[:50]), return_exceptions=True)
    all_refused(again, "DUPLICATE_MESSAGE")
    assert (await line.counts()).length == 20


async def test_the_bound_holds_and_who_does_not_wait_is_told_so(line: Line) -> None:
    await line.create(bound=30)
    answers = await asyncio.gather(*(line.put(b"x") for _ in range(MANY)), return_exceptions=True)
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    assert len(errors) == MANY - 30
    all_refused(errors, "QUEUE_FULL")
    assert (await line.counts()).length == 30


async def among_others(line: Line, one: Message, **fields: Any) -> list[queue_service_pb2.PutResponse | BaseException]:
    """What one that is put many times is told, each time behind one that is nothing but a payload."""
    puts = [line.put(each, **fields) for _ in range(MANY // 2) for each in (b"x", one)]
    answers = await asyncio.gather(*puts, return_exceptions=True)
    all_refused(answers[::2], "QUEUE_FULL")
    return answers[1::2]


async def test_what_is_delayed_needs_no_room_though_it_came_with_what_found_none(line: Line) -> None:
    await line.create(bound=1)
    await line.put(b"there")
    results = results_of(await among_others(line, Message(payload=b"later", delay=span(60_000))))
    assert all(one.ticket == one.position == 0 for one in results)
    counts = await line.counts()
    assert (counts.length, counts.delayed) == (1, len(results))


async def test_an_id_that_is_known_is_known_though_it_came_with_what_found_no_room(line: Line) -> None:
    await line.create(bound=1)
    there = Message(id="there", payload=b"there")
    [first] = (await line.put(there)).results
    results = results_of(await among_others(line, there, on_duplicate=KEEP))
    assert all(one.deduplicated and one.ticket == first.ticket for one in results)
    all_refused(await among_others(line, there), "DUPLICATE_MESSAGE")
    assert (await line.counts()).length == 1


async def test_what_takes_a_place_needs_no_room_though_it_came_with_what_found_none(line: Line) -> None:
    await line.create(bound=1)
    there = Message(id="there", payload=b"there")
    [first] = (await line.put(there)).results
    results = results_of(await among_others(line, there, on_duplicate=REPLACE))
    assert all((one.ticket, one.position) == (first.ticket, 1) for one in results)
    counts = await line.counts()
    assert (counts.length, counts.withdrawn) == (1, len(results))


async def test_who_waits_for_room_gets_it_in_the_end(line: Line) -> None:
    await line.create(bound=5)
    putting = asyncio.gather(*(line.put(b"%d" % n, wait_ms=60_000) for n in range(60)))
    taken: list[bytes] = []
    while len(taken) < 60:
        deliveries = (await line.get(5, wait_ms=10_000)).deliveries
        taken += payloads(deliveries)
        await line.ack(*leases(deliveries))
    await putting
    assert sorted(taken) == sorted(b"%d" % n for n in range(60))
    assert (await line.counts()).length == 0


async def test_each_get_has_what_it_asked_for_and_settles_its_own(line: Line) -> None:
    await line.create()
    await line.put(*(b"%d" % n for n in range(1_000)))
    held = [(await line.get(1)).deliveries for _ in range(2)]  # from now on it flows
    taken = list(held)
    for _ in range(3):
        asked = [line.get(n % 3 + 1, ack=leases(held[n]) if n < len(held) else ()) for n in range(100)]
        answers = await asyncio.gather(*asked)
        assert [len(one.deliveries) for one in answers] == [n % 3 + 1 for n in range(100)]
        assert [[each.settled for each in one.settled] for one in answers] == [
            [ACKED] * len(held[n]) if n < len(held) else [] for n in range(100)
        ]
        held = [one.deliveries for one in answers]
        taken += held
    numbers = [int(one) for batch in taken for one in payloads(batch)]
    assert sorted(numbers) == list(range(len(numbers)))
    tokens = [token for batch in held for token in leases(batch)]
    secrets = Counter(chain.from_iterable({token[22:44] for token in leases(batch)} for batch in held))
    assert set(secrets.values()) == {1}  # whoever knows its own cannot guess another's
    ends = await asyncio.gather(*(line.ack(*leases(batch)) for batch in held), *(line.ack(tokens[0]) for _ in range(9)))
    flat = Counter(chain.from_iterable(ends))
    assert flat == {ACKED: len(tokens), ALREADY_ACKED: 9}
    assert (await line.counts()).acked == len(numbers)


async def test_of_those_who_get_some_settle_and_others_have_nothing_to(line: Line) -> None:
    await line.create()
    await line.put(*(b"%d" % n for n in range(4 * MANY)))
    held = await line.take(MANY)
    gets = [
        (line.get(ack=[held[n].lease, held[n + 1].lease]) if n % 4 == 0 else line.get())
        for n in range(MANY)  # those who settle stand among those who do not
    ]
    answers = await asyncio.gather(*gets)
    assert [len(answer.deliveries) for answer in answers] == [1] * MANY
    for n, answer in enumerate(answers):
        expected = [(held[n].lease, ACKED), (held[n + 1].lease, ACKED)] if n % 4 == 0 else []
        assert [(one.lease, one.settled) for one in answer.settled] == expected
    assert await leased(line, MANY + MANY // 2)


async def test_at_the_end_of_what_waits_the_rest_stand_in_line(line: Line) -> None:
    await line.create()
    await line.put(b"0", b"1", b"2")
    await line.take(1)
    waiting = [asyncio.create_task(line.get(1, wait_ms=60_000)) for _ in range(20)]
    await eventually(lambda: leased(line, 3))
    await line.put(*(b"%d" % n for n in range(3, 21)))
    answers = await asyncio.gather(*waiting)
    assert sorted(int(one) for answer in answers for one in payloads(answer.deliveries)) == list(range(1, 21))


async def stand(line: Line, count: int, *, most: int = 1) -> list[asyncio.Task[queue_service_pb2.GetResponse]]:
    """Gets that stand in line, one behind the other."""
    waiting = []
    for _ in range(count):
        waiting.append(asyncio.create_task(line.get(most, wait_ms=60_000)))
        await eventually(lambda: consumers_wait(line, len(waiting)))
    return waiting


async def test_those_who_stand_are_served_together_in_their_order(line: Line) -> None:
    await line.create()
    waiting = await stand(line, 12)
    left = 12
    for start, count in ((0, 5), (5, 1), (6, 6)):
        left -= count
        await line.put(*(b"%d" % n for n in range(start, start + count)))
        answers = await asyncio.gather(*waiting[start : start + count])
        taken = [one for answer in answers for one in payloads(answer.deliveries)]
        assert taken == [b"%d" % n for n in range(start, start + count)]
        assert await consumers_wait(line, left)


async def test_who_asks_for_more_than_others_is_served_first_where_it_stands_first(line: Line) -> None:
    await line.create()
    waiting = [*await stand(line, 1, most=3)]
    waiting.append(asyncio.create_task(line.get(2, wait_ms=60_000, consumer="another")))
    await eventually(lambda: consumers_wait(line, 2))
    waiting += [asyncio.create_task(line.get(2, wait_ms=60_000)) for _ in range(2)]
    await eventually(lambda: consumers_wait(line, 4))
    await line.put(*(b"%d" % n for n in range(8)))
    answers = await asyncio.gather(*waiting)
    assert [payloads(one.deliveries) for one in answers[:2]] == [[b"0", b"1", b"2"], [b"3", b"4"]]
    assert sorted(payloads(one.deliveries) for one in answers[2:]) == [[b"5", b"6"], [b"7"]]


async def test_who_settles_and_finds_nothing_waits_on_though_others_with_it_were_served(line: Line) -> None:
    await line.create()
    await line.put(*(b"%d" % n for n in range(23)))
    held = await line.take(20)
    waiting = [asyncio.create_task(line.get(wait_ms=60_000, ack=[one.lease])) for one in held]
    await eventually(lambda: leased(line, 3))  # what was there
    await eventually(lambda: consumers_wait(line, 17))
    assert sum(one.done() for one in waiting) == 3
    await line.put(*(b"%d" % n for n in range(23, 40)))
    answers = await asyncio.gather(*waiting)
    taken = sorted(int(one) for answer in answers for one in payloads(answer.deliveries))
    assert taken == list(range(20, 40))
    assert [each.settled for answer in answers for each in answer.settled] == [ACKED] * 20
    counts = await line.counts()
    assert (counts.acked, counts.leased, counts.consumers_waiting) == (20, 20, 0)


async def test_a_closed_queue_that_is_drained_ends_each_wait(line: Line) -> None:
    await line.create()
    await line.put(*(b"%d" % n for n in range(6)))
    held = await line.take(5)
    waiting = [asyncio.create_task(line.get(wait_ms=60_000, ack=[one.lease])) for one in held[:4]]
    await eventually(lambda: consumers_wait(line, 3))
    waiting += [asyncio.create_task(line.get(wait_ms=60_000)) for _ in range(3)]
    await eventually(lambda: consumers_wait(line, 6))
    await line.close()
    [served] = [one for one in waiting if one.done()]
    waiting.remove(served)
    assert all(not one.done() for one in waiting)  # two are still leased
    await line.ack(held[4].lease, *leases(served.result().deliveries))
    async with asyncio.timeout(SLACK_S):
        answers = await asyncio.gather(*waiting, return_exceptions=True)
    drained = [one for one in answers if isinstance(one, BaseException)]
    assert len(drained) == 3  # who had something settled is told that instead
    all_refused(drained, "QUEUE_DRAINED")


async def test_the_places_of_those_who_went_while_they_asked_together_are_given_up(line: Line) -> None:
    await line.create()
    assert not (await line.get()).deliveries
    request = queue_service_pb2.GetRequest(queue=line.name, max_messages=1, wait=span(60_000))
    for pause_s in (0.0, 0.001, 0.002, 0.004, 0.05):
        calls = [line.stub.Get(request, timeout=SLACK_S) for _ in range(40)]
        await asyncio.sleep(pause_s)
        for call in calls:
            call.cancel()
        await asyncio.wait({asyncio.ensure_future(call.code()) for call in calls})
    await eventually(lambda: consumers_wait(line, 0))
    await line.put(b"1")
    assert payloads((await line.get(wait_ms=10_000)).deliveries) == [b"1"]


async def test_what_was_leased_for_callers_who_went_comes_back(line: Line) -> None:
    await line.create(lease=span(1_000))  # an answer that is on its way cannot be called back: then it must lapse
    await line.put(*(b"%d" % n for n in range(300)))
    first = await line.take(1)
    request = queue_service_pb2.GetRequest(queue=line.name, max_messages=2)
    for _ in range(5):
        calls = [line.stub.Get(request, timeout=SLACK_S) for _ in range(40)]
        await asyncio.sleep(0.002)
        for call in calls:
            call.cancel()
        await asyncio.wait({asyncio.ensure_future(call.code()) for call in calls})
    await eventually(lambda: leased(line, 0))
    counts = await line.counts()
    assert (counts.length, counts.acked) == (300, 0)
    rest = await line.take(300, lease_ms=60_000)
    assert payloads(rest) == [b"%d" % n for n in range(300)]
    assert GONE not in await line.ack(*leases(first))


async def test_with_slots_a_holder_that_settles_keeps_its_own(line: Line) -> None:
    await line.create(limit=2)
    await line.put(*(b"%d" % n for n in range(100)))
    held = [(await line.take(1)), (await line.take(1))]
    for _ in range(20):
        newcomers = [asyncio.create_task(line.get(1)) for _ in range(5)]
        answers = await asyncio.gather(*(line.get(1, ack=leases(one)) for one in held))
        assert [len(one.deliveries) for one in answers] == [1, 1]
        held = [list(one.deliveries) for one in answers]
        assert all(not one.deliveries for one in await asyncio.gather(*newcomers))


async def test_a_closed_queue_refuses_each(line: Line) -> None:
    await line.create()
    await line.put(b"1", b"2")
    await line.take(1)
    await line.close()
    puts = await asyncio.gather(*(line.put(b"x") for _ in range(20)), return_exceptions=True)
    all_refused(puts, "QUEUE_CLOSED")
    gets = await asyncio.gather(*(line.get(1) for _ in range(20)))
    assert [payload for one in gets for payload in payloads(one.deliveries)] == [b"2"]
