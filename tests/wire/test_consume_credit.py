"""Consume: what is outstanding stays within the credit, in messages and in bytes, which may change at any time."""

from __future__ import annotations

import asyncio

import pytest

from harness import eventually
from wire.calls import ACKED, EXTENDED, GONE, STALE, Line, Message, leases, payloads, span
from wire.conditions import consumers_wait, leased
from wire.flows import Consuming, ends
from wire.test_pause import pause, resume

LONG_MS = 600_000


async def test_the_credit_is_never_exceeded(line: Line) -> None:
    await line.create()
    await line.put(*(b"%d" % number for number in range(300)))
    async with Consuming(line, 7) as stream:
        done = 0
        while done < 300:
            await stream.taken(min(done + 1, 300))
            assert len(stream.deliveries) - done <= 7
            assert (await line.counts()).leased <= 7
            upto = len(stream.deliveries)
            await stream.ack(*leases(stream.deliveries[done:upto]))
            done = upto
            await stream.results(done)
        assert payloads(stream.deliveries) == [b"%d" % number for number in range(300)]


async def test_a_lone_stream_is_given_its_credit_in_parts(line: Line) -> None:
    await line.create()
    for start in range(0, 1_000, 500):
        await line.put(*(b"%d" % number for number in range(start, start + 500)))
    async with Consuming(line, 600) as stream:
        await stream.taken(600)
        assert [len(one.deliveries) for one in stream.seen] == [300, 300]
        await stream.ack(*leases(stream.deliveries))
        assert payloads(await stream.taken(1_000)) == [b"%d" % number for number in range(1_000)]
        assert ends(await stream.results(600)) == [ACKED] * 600


async def test_of_several_streams_each_may_have_its_credit_at_once(line: Line) -> None:
    await line.create()
    await line.put(*(b"%d" % number for number in range(600)))
    async with Consuming(line) as other:
        await other.ack("made-up")
        await other.results(1)  # it is there, and does not wait in line
        async with Consuming(line, 600) as stream:
            await stream.taken(600)
            assert [len(one.deliveries) for one in stream.seen] == [600]


async def test_without_credit_nothing_comes_and_credit_may_be_changed(line: Line) -> None:
    await line.create()
    await line.put(b"1", b"2", b"3", b"4")
    async with Consuming(line) as stream:
        await stream.ack("made-up")  # the stream is alive
        assert ends(await stream.results(1)) == [GONE]
        assert not stream.deliveries
        await stream.credit(2)
        assert payloads(await stream.taken(2)) == [b"1", b"2"]
        await stream.credit(0)
        await stream.ack(*await stream.tokens(2))
        assert ends(await stream.results(3)) == [GONE, ACKED, ACKED]
        assert (await line.counts()).leased == 0
        await stream.credit(1)
        assert payloads(await stream.taken(3)) == [b"1", b"2", b"3"]
        await stream.credit(2)
        await stream.taken(4)


async def test_credit_that_is_taken_back_while_the_stream_waits_gives_up_its_place(line: Line) -> None:
    await line.create()
    async with Consuming(line, 5) as stream:
        await stream.position(1)
        await stream.credit(0)
        await eventually(lambda: consumers_wait(line, 0))
        await line.put(b"1", b"2", b"3")
        assert payloads((await line.get(3)).deliveries) == [b"1", b"2", b"3"]
        assert not stream.deliveries
        await stream.credit(1)
        await eventually(lambda: consumers_wait(line, 1))
        await line.put(b"4", b"5")
        assert payloads(await stream.taken(1)) == [b"4"]
        assert payloads((await line.get(3)).deliveries) == [b"5"]


async def test_less_credit_while_the_stream_waits_makes_its_turn_smaller(line: Line) -> None:
    await line.create()
    async with Consuming(line, 50) as stream:
        await stream.position(1)
        await stream.credit(2)
        await stream.ack("made-up")
        await stream.results(1)  # so the credit is known
        await line.put(*(b"%d" % number for number in range(10)))
        await stream.taken(2)
        await stream.ack("made-up")
        await stream.results(2)
        assert len(stream.deliveries) == 2
        assert (await line.counts()).leased == 2


@pytest.mark.parametrize("policy", [{}, {"time_to_live": span(LONG_MS)}], ids=["plain", "mortal"])
async def test_bytes_are_a_credit_too_and_never_exceeded(line: Line, policy: dict[str, object]) -> None:
    """Also where messages are looked at one by one, because they may expire."""
    await line.create(**policy)
    await line.put(*(b"x" * size for size in (400, 400, 400, 100, 100)))
    async with Consuming(line, 100, 1_000) as stream:
        first = await stream.taken(2)  # the third does not fit
        await stream.ack("made-up")
        await stream.results(1)
        assert len(stream.deliveries) == 2
        await stream.ack(first[0].lease)
        assert [len(one) for one in payloads(await stream.taken(5))] == [400, 400, 400, 100, 100]
        assert (await line.counts()).leased == 4  # 1,000 bytes


async def test_one_message_always_fits(line: Line) -> None:
    await line.create()
    await line.put(b"x" * 5_000, b"y" * 5_000, b"z")
    async with Consuming(line, 100, 10) as stream:
        await stream.taken(1)
        await stream.ack(*await stream.tokens(1))
        await stream.taken(2)
        await stream.ack("made-up")
        await stream.results(2)
        assert len(stream.deliveries) == 2
        await stream.ack((await stream.tokens(2))[1])
        assert payloads(await stream.taken(3))[2] == b"z"


async def test_a_message_too_large_for_what_is_left_holds_up_nobody_else(line: Line) -> None:
    await line.create()
    async with Consuming(line, 100, 1_000) as stream:
        await stream.position(1)
        await line.put(b"x" * 600)
        await stream.taken(1)
        await eventually(lambda: consumers_wait(line, 1))  # there is credit left
        await line.put(b"y" * 600)
        assert len((await line.get(wait_ms=1_500)).deliveries) == 1  # sooner than one who hangs is passed over
        assert len(stream.deliveries) == 1
        assert (await line.describe()).counts.consumers_waiting == 0


async def test_headers_and_ids_count_as_bytes(line: Line) -> None:
    await line.create()
    await line.put(*(Message(id=f"{number}" + "i" * 90, headers={"k": "v" * 400}, payload=b"") for number in range(4)))
    async with Consuming(line, 100, 1_200) as stream:
        await stream.taken(2)
        await stream.ack("made-up")
        await stream.results(1)
        assert len(stream.deliveries) == 2


async def test_a_lease_that_lapses_gives_its_credit_back(line: Line) -> None:
    await line.create()
    await line.put(b"1", b"2")
    async with Consuming(line, 1, lease_ms=1_000) as stream:
        first, again = await stream.taken(2)
        assert (first.message.payload, again.message.payload) == (b"1", b"1")
        assert again.attempt == 2
        await stream.extend(again.lease, lease_ms=3_600_000)
        await stream.results(1)
        await asyncio.sleep(1.5)  # longer than the lease was
        assert len(stream.deliveries) == 2
        await stream.ack(first.lease, again.lease)
        assert ends(await stream.results(3)) == [EXTENDED, STALE, ACKED]
        assert payloads(await stream.taken(3))[2] == b"2"


async def test_a_lapsed_lease_that_is_taken_up_again_while_the_stream_waits_takes_its_credit(line: Line) -> None:
    await line.create()
    await line.put(b"1", b"2", b"3")
    async with Consuming(line, 1, lease_ms=LONG_MS) as stream:
        [held] = await stream.taken(1)
        await pause(line)
        await stream.extend(held.lease, lease_ms=100)
        await stream.position(1)  # it has lapsed
        await stream.extend(held.lease, lease_ms=LONG_MS)
        await eventually(lambda: consumers_wait(line, 0))
        await resume(line)
        await stream.ack("made-up")
        assert ends(await stream.results(3)) == [EXTENDED, EXTENDED, GONE]
        assert ((await line.counts()).leased, len(stream.deliveries)) == (1, 1)
        await stream.ack(held.lease)
        assert payloads(await stream.taken(2)) == [b"1", b"2"]


async def test_a_lapsed_lease_that_is_taken_up_again_leaves_the_rest_of_the_credit(line: Line) -> None:
    await line.create()
    await line.put(b"1", b"2", b"3")
    async with Consuming(line, 2, lease_ms=LONG_MS) as stream:
        held = await stream.taken(2)
        await pause(line)
        await stream.extend(*leases(held), lease_ms=100)
        await stream.position(1)
        await eventually(lambda: leased(line, 0))
        await stream.extend(held[0].lease, lease_ms=LONG_MS)
        assert ends(await stream.results(3)) == [EXTENDED] * 3
        await resume(line)
        await stream.taken(3)
        await stream.ack("made-up")
        await stream.results(4)
        assert ((await line.counts()).leased, payloads(stream.deliveries)) == (2, [b"1", b"2", b"2"])


async def test_credit_taken_back_while_the_stream_waits_leaves_what_it_has_leased_alone(line: Line) -> None:
    await line.create()
    await line.put(b"1")
    async with Consuming(line, 5) as stream:
        [held] = await stream.taken(1)
        await eventually(lambda: consumers_wait(line, 1))
        await stream.credit(0)
        await eventually(lambda: consumers_wait(line, 0))
        assert (await line.counts()).leased == 1
        await stream.ack(held.lease)
        assert ends(await stream.results(1)) == [ACKED]
