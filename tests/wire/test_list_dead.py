"""ListDead: the dead in the order they died, page by page, each exactly once."""

from __future__ import annotations

import base64

import pytest

from harness import eventually, refused
from headway.v1 import queue_pb2
from wire.calls import INVALID_ARGUMENT, NOT_FOUND, Keys, Line, Message, leases, now_ms, span
from wire.conditions import has_dead
from wire.operators import ONE_ATTEMPT, all_dead, bury, fail, list_dead, redrive
from wire.test_purge import purge


def named(number: int, payload: bytes = b"x") -> Message:
    return Message(id=f"m{number}", payload=payload)


async def test_a_dead_message_is_told_with_all_that_is_known(line: Line, keys: Keys) -> None:
    await line.create(retry=queue_pb2.Retry(max_attempts=2))
    await line.put(Message(id="a", payload=b"body", headers={"h": "1", "i": ""}))
    first = await line.take_one()
    await line.delay(first.lease, delay_ms=0, reason="first")
    before = now_ms(keys.client)
    await fail(line, [(await line.take_one()).lease], reason="größe \U0001f422")
    after = now_ms(keys.client)
    [dead] = await all_dead(line)
    assert (dead.message.id, dead.message.payload, dict(dead.message.headers)) == ("a", b"body", {"h": "1", "i": ""})
    assert (dead.failures, dead.cause, dead.last_error, dead.replays) == (2, "attempts", "größe \U0001f422", 0)
    assert before - 1 <= dead.died_at.ToMilliseconds() <= after + 1
    assert dead.put_at == first.put_at


async def test_a_message_that_lapsed_to_death_says_so(line: Line) -> None:
    await line.create(retry=ONE_ATTEMPT)
    await line.put(b"bare")
    taken = await line.take_one(lease_ms=100)
    await eventually(lambda: has_dead(line, 1))
    [dead] = await all_dead(line)
    assert (dead.message.id, dead.message.payload) == (taken.message.id, b"bare")
    assert (dead.failures, dead.cause, dead.last_error) == (1, "attempts", "the lease lapsed")


async def test_nothing_dead_is_an_empty_last_page(line: Line) -> None:
    await line.create()
    page = await list_dead(line)
    assert (list(page.messages), page.next_page_token) == ([], "")


async def test_pages_go_on_where_the_one_before_ended(line: Line) -> None:
    await line.create(retry=ONE_ATTEMPT)
    await bury(line, *(named(number, b"%d" % number) for number in range(25)))
    seen: list[str] = []
    token, sizes = "", []
    while True:
        page = await list_dead(line, page_size=10, page_token=token)
        seen += [dead.message.id for dead in page.messages]
        sizes.append(len(page.messages))
        token = page.next_page_token
        if not token:
            break
    assert seen == [f"m{number}" for number in range(25)]
    assert sizes == [10, 10, 5]


@pytest.mark.parametrize("page_size", [1, 3, 1_000])
async def test_messages_that_died_at_one_instant_are_each_in_one_page(line: Line, page_size: int) -> None:
    await line.create(retry=ONE_ATTEMPT)
    await bury(line, *(named(number) for number in range(40)))  # one step: one instant
    assert [dead.message.id for dead in await all_dead(line, page_size=page_size)] == [f"m{n}" for n in range(40)]


async def test_a_whole_number_of_pages_ends_with_an_empty_token(line: Line) -> None:
    await line.create(retry=ONE_ATTEMPT)
    await bury(line, *(named(number) for number in range(20)))
    assert [dead.message.id for dead in await all_dead(line, page_size=10)] == [f"m{n}" for n in range(20)]


async def test_the_order_is_that_of_dying_and_not_of_putting(line: Line) -> None:
    await line.create(retry=ONE_ATTEMPT)
    await line.put(*(named(number) for number in range(6)))
    taken = leases(await line.take(6))
    for at in (3, 1, 5, 0, 4, 2):
        await fail(line, [taken[at]])
    assert [dead.message.id for dead in await all_dead(line, page_size=2)] == ["m3", "m1", "m5", "m0", "m4", "m2"]


async def test_payloads_can_be_left_out(line: Line) -> None:
    await line.create(retry=ONE_ATTEMPT)
    await bury(line, Message(id="a", payload=b"body", headers={"h": "1"}), b"bare")
    dead = await all_dead(line, without_payloads=True)
    assert [one.message.payload for one in dead] == [b"", b""]
    assert dict(dead[0].message.headers) == {"h": "1"}
    assert [one.last_error for one in dead] == ["no luck", "no luck"]


async def test_a_page_carries_at_most_so_many_bytes_and_one_message_at_least(line: Line) -> None:
    await line.create(retry=ONE_ATTEMPT)
    for number in range(8):
        await bury(line, named(number, b"%d" % number * 1_000_000))
    page = await list_dead(line)
    assert 1 <= len(page.messages) <= 3
    assert page.next_page_token
    assert [dead.message.id for dead in await all_dead(line)] == [f"m{number}" for number in range(8)]


async def test_what_is_dead_all_the_while_is_listed_once_though_others_come_and_go(line: Line) -> None:
    await line.create(retry=ONE_ATTEMPT)
    await bury(line, *(named(number) for number in range(30)))
    first = await list_dead(line, page_size=10)
    await redrive(line, "m2", "m9", "m10", "m15")
    await fail(line, leases(await line.take(4)))  # they die again, at the end
    await bury(line, named(99))
    rest, token = [], first.next_page_token
    while token:
        page = await list_dead(line, page_size=10, page_token=token)
        rest += [dead.message.id for dead in page.messages]
        token = page.next_page_token
    seen = [dead.message.id for dead in first.messages] + rest
    stayed = {f"m{number}" for number in range(30)} - {"m2", "m9", "m10", "m15"}
    assert sorted(message_id for message_id in seen if message_id in stayed) == sorted(stayed)
    assert "m99" in rest


async def test_the_page_that_a_token_begins_may_have_gone(line: Line) -> None:
    await line.create(retry=ONE_ATTEMPT)
    await bury(line, *(named(number) for number in range(5)))
    token = (await list_dead(line, page_size=2)).next_page_token
    await purge(line, dead=True)
    page = await list_dead(line, page_token=token)
    assert (list(page.messages), page.next_page_token) == ([], "")


@pytest.mark.parametrize(
    "token",
    ["garbage", "-1", "1e9", "nan", "1:2:3", "x" * 256, "x" * 257, "\x00", "ü", "1", "\u0663", "9" * 16, "9" * 24],
    ids=ascii,
)
async def test_a_token_that_nobody_gave_is_refused(line: Line, token: str) -> None:
    await line.create(retry=ONE_ATTEMPT)
    await bury(line, b"x")
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await list_dead(line, page_token=token)
    assert list(said.violations) == ["page_token"]


async def test_a_token_of_another_queue_is_refused(line: Line) -> None:
    other = Line(line.stub, f"{line.name}-other", line.admin)
    for one in (line, other):
        await one.create(retry=ONE_ATTEMPT)
        await bury(one, *(named(number) for number in range(3)))
    token = (await list_dead(line, page_size=1)).next_page_token
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await list_dead(other, page_token=token)
    assert list(said.violations) == ["page_token"]
    await other.delete()


async def test_a_token_of_an_earlier_life_is_refused(line: Line) -> None:
    await line.create(retry=ONE_ATTEMPT)
    await bury(line, *(named(number) for number in range(3)))
    token = (await list_dead(line, page_size=1)).next_page_token
    await line.delete()
    await line.create(retry=ONE_ATTEMPT)
    await bury(line, *(named(number) for number in range(3)))
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await list_dead(line, page_token=token)
    assert list(said.violations) == ["page_token"]


async def test_a_token_in_another_spelling_is_refused(line: Line) -> None:
    await line.create(retry=ONE_ATTEMPT)
    await bury(line, *(named(number) for number in range(3)))
    front, _, number = (await list_dead(line, page_size=1)).next_page_token.rpartition("-")
    for other in (f"{front}-0{number}", f"{front}-0", f"{front}-", f"{front}-{number} "):
        with refused("FIELD_INVALID", INVALID_ARGUMENT):
            await list_dead(line, page_token=other)
    assert len((await list_dead(line, page_token=f"{front}-{number}")).messages) == 2


async def test_a_token_that_was_changed_harms_nothing(line: Line) -> None:
    await line.create(retry=ONE_ATTEMPT)
    await bury(line, *(named(number) for number in range(5)))
    token = (await list_dead(line, page_size=2)).next_page_token
    for changed in (token + "A", token[:-1], token[::-1], base64.urlsafe_b64encode(token.encode()).decode()):
        try:
            page = await list_dead(line, page_token=changed)
        except Exception:  # noqa: BLE001 - that it is refused is shown above
            continue
        assert len(page.messages) <= 5
    assert (await line.counts()).dead == 5


async def test_an_unknown_queue_is_not_found(line: Line) -> None:
    with refused("QUEUE_NOT_FOUND", NOT_FOUND) as said:
        await list_dead(line)
    assert said.metadata == {"queue": line.name}


async def test_a_page_has_at_most_1000(line: Line) -> None:
    await line.create(retry=ONE_ATTEMPT)
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await list_dead(line, page_size=1_001)
    assert list(said.violations) == ["page_size"]
    await bury(line, *(b"%d" % number for number in range(1_100)))
    assert len((await list_dead(line)).messages) == 100
    assert len((await list_dead(line, page_size=1_000)).messages) == 1_000
    assert [dead.message.payload for dead in await all_dead(line, page_size=1_000)] == [b"%d" % n for n in range(1_100)]


async def test_listing_changes_nothing(line: Line) -> None:
    await line.create(retry=ONE_ATTEMPT, time_to_live=span(600_000))
    await bury(line, named(1))
    before = await all_dead(line)
    assert await all_dead(line) == before
    assert (await line.counts()).dead == 1
