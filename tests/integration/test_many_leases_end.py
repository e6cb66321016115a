"""Thousands of leases end at once: no step grows with how many came back before, or with how many there were."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from headwayd.domain.model import GetOrder
from headwayd.domain.standing import Waiter
from headwayd.engine.releasing import MOST_AT_ONCE, Releases
from headwayd.engine.tasks import Tasks
from integration.desk import HOUR_MS, Desk

PART = 500
MANY = 4_000
MOST_COMMANDS = 200  # of one step that looks whether attempts are over
MOST_FOUND = 2_000  # leases that one step finds: a thousand, and how many more the last bundle has
GONE, HERE = "headway/gone/1", "headway/here/1"


@pytest.fixture
async def tasks() -> AsyncIterator[Tasks]:
    tasks = Tasks()
    yield tasks
    await tasks.close()


async def leased(desk: Desk, *, attempts: bool = False) -> list[str]:
    """So many, 500 at a time, each time by an attempt of its own if there are to be `attempts`."""
    leases: list[str] = []
    for start in range(0, MANY, PART):
        await desk.put(*[b"%d" % number for number in range(start, start + PART)])
        taken = await desk.take(PART, lease_ms=HOUR_MS, attempt_id=f"attempt-{start}" if attempts else "")
        leases += [delivery.lease for delivery in taken]
    assert len(leases) == MANY
    return leases


async def test_those_of_many_holders_come_back_in_order_and_nothing_is_moved_for_it(desk: Desk, tasks: Tasks) -> None:
    await desk.create()
    leases = await leased(desk)
    releases = Releases(desk.store, tasks.spawn)
    before = desk.raw.info("commandstats")
    for first in (2, 0, 3, 1):  # four holders, each of every fourth part
        tasks.spawn(releases.release(desk.name, leases[first * MANY // 4 :][: MANY // 4], owned=False), "holder")
    await tasks.drain(30)
    after = desk.raw.info("commandstats")
    assert after["cmdstat_evalsha"]["calls"] - before["cmdstat_evalsha"]["calls"] <= MANY // MOST_AT_ONCE + 1
    # To put one in the middle, those before it are taken out, and put back.
    assert after.get("cmdstat_rpop") == before.get("cmdstat_rpop")
    assert [delivery.payload for delivery in await desk.take(1_000)] == [b"%d" % number for number in range(1_000)]


async def leased_by_streams(desk: Desk, streams: Sequence[str], kept: str) -> list[list[bytes]]:
    """They have leased all in turns of 500, half of these by 10. What each has."""
    names = [b"%04d" % number for number in range(MANY)]
    theirs: list[list[bytes]] = [[] for _ in streams]
    for turn, start in enumerate(range(0, MANY, PART)):
        part = names[start : start + PART]
        await desk.put(*part, ids=[name.decode() for name in part] if kept == "by themselves" else ())
        waiter = Waiter(name=streams[turn % len(streams)], owns_leases=True)
        theirs[turn % len(streams)] += part
        for _ in range(50 if turn % 2 else 1):
            order = GetOrder(desk.name, max_messages=10 if turn % 2 else PART, lease_ms=HOUR_MS, max_bytes=10**7)
            await desk.store.get(order, waiter=waiter, budget_s=5)
    assert (await desk.counts()).leased == MANY
    return theirs


async def given_back_in_small_steps(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, ending: Callable[[], Awaitable[object]], back: Sequence[bytes]
) -> bool:
    """Asserts that by this ending just those come back, in order, at no attempt's cost, and a few in each step."""
    counts, ask = [0], desk.store._ask

    async def watched(script: str, *arguments: object, **named: object) -> object:
        answer = await ask(script, *arguments, **named)  # type: ignore[arg-type]
        assert len(answer) <= MOST_FOUND
        counts.append(int(desk.raw.llen(desk.key("q"))))
        return answer

    monkeypatch.setattr(desk.store, "_ask", watched)
    before = desk.raw.info("commandstats")
    await ending()
    after = desk.raw.info("commandstats")
    monkeypatch.undo()
    assert max(later - earlier for earlier, later in itertools.pairwise(counts)) <= MOST_AT_ONCE
    for command in ("rpop", "hgetall"):  # nothing is moved for it, and nothing is read as a whole
        assert after.get(f"cmdstat_{command}") == before.get(f"cmdstat_{command}")
    assert await desk.is_sound()
    taken = [one for _ in range(MANY // PART) for one in await desk.take(PART)]
    assert {one.attempt for one in taken} == {1}
    assert [one.payload for one in taken] == sorted(back)
    return True


@pytest.mark.parametrize("kept", ["in bundles", "by themselves"])
async def test_those_of_a_killed_process_come_back_in_order_and_in_small_steps(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    """Two of its streams, and one of another process, have leased them."""
    await desk.create(max_attempts=1)
    streams = [f"{GONE}#1", f"{HERE}#1", f"{GONE}#2"]
    first, stays, second = await leased_by_streams(desk, streams, kept)

    async def ending() -> None:
        await desk.store.drop_absent(desk.name, spared=[HERE], budget_s=5)

    assert await given_back_in_small_steps(desk, monkeypatch, ending, first + second)
    assert desk.raw.hgetall(desk.key("held")) == {streams[1].encode(): b"%d" % len(stays)}


@pytest.mark.parametrize("how", ["left", "kept its place"])
@pytest.mark.parametrize("kept", ["in bundles", "by themselves"])
async def test_those_of_a_stream_that_lost_the_answers_come_back_in_order_and_in_small_steps(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, kept: str, how: str
) -> None:
    """Whoever ends it does not know of them."""
    await desk.create(max_attempts=1)
    streams = [f"{HERE}#1", f"{HERE}#2"]
    back, stays = await leased_by_streams(desk, streams, kept)

    async def ending() -> None:
        if how == "left":
            await desk.store.stop_standing(desk.name, streams[0], budget_s=5)
        else:
            standing, _ = await desk.store.keep_place(desk.name, Waiter(streams[0], 7), "@place", None, budget_s=5)
            assert (standing.position, standing.length) == (1, 1)

    assert await given_back_in_small_steps(desk, monkeypatch, ending, back)
    assert desk.raw.hgetall(desk.key("held")) == {streams[1].encode(): b"%d" % len(stays)}


async def test_of_a_stream_that_is_said_to_have_leases_and_has_none_nothing_is_kept(desk: Desk) -> None:
    await desk.create()
    desk.raw.hset(desk.key("held"), f"{HERE}#1", 3)
    await desk.store.stop_standing(desk.name, f"{HERE}#1", budget_s=5)
    assert not desk.raw.exists(desk.key("held"))
    assert await desk.is_sound()


async def test_whether_attempts_are_over_is_looked_at_in_small_steps(desk: Desk) -> None:
    await desk.create()
    leases = await leased(desk, attempts=True)
    for first_of_attempt in leases[::PART]:  # from now on each lease is kept by itself
        await desk.store.extend(desk.name, [first_of_attempt], HOUR_MS, budget_s=5)
    desk.at(5_000)
    before = desk.raw.info("commandstats")
    await desk.sweep()
    after = desk.raw.info("commandstats")
    given = sum(stats["calls"] - before.get(name, {"calls": 0})["calls"] for name, stats in after.items())
    assert given < MOST_COMMANDS


async def test_leases_that_lapse_one_by_one_do_not_move_thousands_each_time(desk: Desk) -> None:
    await desk.create(max_attempts=0)
    leases = await leased(desk)
    await desk.store.release(desk.name, leases[:2_000], budget_s=5)
    for n, lease in enumerate(leases[2_000:2_100]):  # a millisecond between one and the next
        await desk.store.extend(desk.name, [lease], 1_000 + n, budget_s=5)
    before = desk.raw.info("commandstats").get("cmdstat_rpop", {"calls": 0})["calls"]
    looked: list[int] = []
    for ms in range(990, 1_250):
        desk.at(ms)
        await desk.sweep()
        looked.append((await desk.counts()).length)
    moved = desk.raw.info("commandstats")["cmdstat_rpop"]["calls"] - before
    assert moved <= 5
    assert looked[0] == 2_000
    assert looked[-1] == 2_100
    assert await desk.is_sound()


async def test_a_lease_that_waits_to_lapse_does_so_in_time_whatever_else_happens(desk: Desk) -> None:
    await desk.create(max_attempts=0)
    leases = await leased(desk)
    await desk.store.release(desk.name, leases[:2_000], budget_s=5)
    await desk.store.extend(desk.name, [leases[3_000]], 1_000, budget_s=5)
    deadline = desk.now_ms + 1_000

    async def put_at(ms: int) -> tuple[int, int]:
        """What waits then, and when something is due next, from the deadline on."""
        desk.at(ms)
        await desk.put(b"new")
        due = desk.raw.hget(desk.key("meta"), "due_said")
        assert due is not None
        return (await desk.counts()).length, int(due) - deadline

    assert await put_at(900) == (2_001, 0)
    assert await put_at(1_010) == (2_002, 100)  # 2,000 stand before it
    assert await put_at(1_050) == (2_003, 100)
    length, due = await put_at(1_100)
    assert length == 2_005
    assert due > 1_000


async def test_a_lease_that_nobody_was_told_of_lapses_all_the_same_and_check_notices(desk: Desk) -> None:
    """As if the next due time had been lost."""
    await desk.create(max_attempts=0)
    leases = await leased(desk)
    await desk.store.release(desk.name, leases[:2_000], budget_s=5)
    await desk.store.extend(desk.name, [leases[3_000]], 1_000, budget_s=5)
    desk.raw.hset(desk.key("meta"), "due_said", desk.now_ms + HOUR_MS)
    desk.at(2_500)
    checked = await desk.store.check(desk.name, max_entries=10**6, budget_s=5)
    assert len(checked.findings) == 1
    await desk.put(b"new")  # which tells that it is due
    await desk.sweep()
    assert (await desk.counts()).length == 2_002
    assert await desk.is_sound()
