"""Redrive from queue to queue, step by step: there and back, broken off in between, and into a target that is full."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from harness import StoreServer
from headwayd.domain.errors import QueueDeleted
from headwayd.domain.model import Policy
from headwayd.engine.ports import RedriveBounds, RedriveStep
from integration.desk import BUDGET_S, Desk, desk_at, queue_of

FIRST = RedriveBounds()


@pytest.fixture
async def there(store_server: StoreServer, request: pytest.FixtureRequest) -> AsyncIterator[Desk]:
    async with desk_at(store_server, f"{queue_of(request)}-there") as made:
        await made.create(max_attempts=1)
        yield made


@pytest.fixture
async def here(desk: Desk) -> Desk:
    await desk.create(max_attempts=1)
    return desk


async def kill(desk: Desk) -> str:
    """The message at the head dies. Returns its id."""
    delivery = await desk.take_one()
    await desk.give_back(delivery.lease)
    assert (await desk.counts()).dead == 1
    return delivery.id


async def move(
    source: Desk, target: Desk, *, most: int = 500, bounds: RedriveBounds = FIRST, ids: Sequence[str] = ()
) -> RedriveStep:
    return await source.store.redrive(
        source.name, target.name, message_ids=ids, bounds=bounds, most=most, budget_s=BUDGET_S
    )


async def move_but_break_off(source: Desk, target: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is put there, and stays here."""
    ask = source.store._ask

    async def breaks(script: str, *arguments: object, **named: object) -> object:
        if script == "drop_dead":
            raise ConnectionError
        return await ask(script, *arguments, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(source.store, "_ask", breaks)
        with pytest.raises(ConnectionError):
            await move(source, target)


async def where(*desks: Desk) -> list[tuple[int, int]]:
    """How many wait, and how many are dead, in each; all must be sound."""
    counted = [await desk.counts() for desk in desks]
    assert all([await desk.is_sound() for desk in desks])
    return [(counts.length, counts.dead) for counts in counted]


@pytest.mark.parametrize("given", ["m", ""], ids=["given-id", "made-id"])
@pytest.mark.parametrize("delay_ms", [0, 10], ids=["put-in-line", "put-for-later"])
async def test_a_message_that_comes_back_to_where_it_was_moved_from_is_not_lost(
    here: Desk, there: Desk, given: str, delay_ms: int
) -> None:
    await here.put(b"x", ids=[given], delay_ms=delay_ms)
    for desk in (here, there):
        desk.at(delay_ms)
    await here.sweep()
    name = await kill(here)
    for source, target in [(here, there), (there, here)] * 3:
        assert (await move(source, target)).moved == 1
        assert await where(source, target) == [(0, 0), (1, 0)]
        assert await kill(target) == name


async def test_a_message_that_never_was_leased_comes_back_too(here: Desk, there: Desk) -> None:
    for desk in (here, there):
        await desk.store.delete(desk.name, budget_s=BUDGET_S)
        await desk.create(max_attempts=1, dead_letter_expired=True, dedupe_window_ms=60_000, remember_ms=1_000)
    await here.put(b"x", ids=["m"], time_to_live_ms=10)
    here.at(10)
    await here.sweep()
    await move(here, there)
    await kill(there)
    here.at(10_000)  # its id is known for longer than the rest
    await here.sweep()
    await move(there, here)
    assert await where(here, there) == [(1, 0), (0, 0)]


async def test_what_was_moved_away_was_withdrawn_for_whoever_asks(here: Desk, there: Desk) -> None:
    await here.put(b"x", b"y", ids=["m", ""])
    name = ""
    for delivery in await here.take(2):
        await here.give_back(delivery.lease)
        name = delivery.id
    await move(here, there)
    assert await here.withdraw("m", name) == ["WITHDRAWN", "WITHDRAWN"]
    assert (await here.put(b"x", ids=["m"])).outcomes[0].error is not None
    places = await here.store.places(here.name, ["m", name], with_shape=False, budget_s=BUDGET_S)
    assert [(one.outcome and one.outcome.name, one.result) for one in places.places] == [("WITHDRAWN", b"")] * 2


async def test_what_was_put_there_and_not_removed_here_is_not_put_there_again(
    here: Desk, there: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.put(b"x", ids=["m"])
    await kill(here)
    await move_but_break_off(here, there, monkeypatch)
    assert await where(here, there) == [(0, 1), (1, 0)]
    assert (await move(here, there)).moved == 1
    assert await where(here, there) == [(0, 0), (1, 0)]


async def test_what_was_put_there_and_not_removed_here_is_one_when_it_comes_back(
    here: Desk, there: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.put(b"x", ids=["m"])
    await kill(here)
    await move_but_break_off(here, there, monkeypatch)
    await kill(there)
    await move(there, here)
    assert await where(here, there) == [(0, 1), (0, 0)]
    await move(here, there)
    assert await where(here, there) == [(0, 0), (1, 0)]


async def test_what_was_put_there_and_withdrawn_from_there_does_not_come_back(
    here: Desk, there: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.put(b"x", ids=["m"])
    await kill(here)
    await move_but_break_off(here, there, monkeypatch)
    assert await there.withdraw("m") == [""]
    assert (await move(here, there)).moved == 1
    assert await where(here, there) == [(0, 0), (0, 0)]


async def test_what_is_left_is_counted_once_when_the_target_is_full(here: Desk, there: Desk) -> None:
    await there.store.update(there.name, Policy(bound=2), ["bound"], budget_s=BUDGET_S)
    await here.put(*[b"x"] * 10)
    for delivery in await here.take(10):
        await here.give_back(delivery.lease)
    step = await move(here, there, most=5)
    assert (step.moved, step.is_full, step.remaining) == (2, True, 8)
    step = await move(here, there, most=500, bounds=step.bounds)
    assert (step.moved, step.is_full, step.remaining) == (0, True, 8)
    await there.take(2)
    step = await move(here, there, most=500, bounds=step.bounds)
    assert (step.moved, step.is_full, step.remaining) == (2, True, 6)
    await there.store.update(there.name, Policy(bound=0), ["bound"], budget_s=BUDGET_S)
    step = await move(here, there, most=2, bounds=step.bounds)
    assert (step.moved, step.is_full, step.remaining) == (2, False, 4)
    step = await move(here, there, most=4, bounds=step.bounds)
    assert (step.moved, step.is_full, step.remaining) == (4, False, 0)


# In the next life of a queue.


async def make_anew(desk: Desk, *, dies: str = "") -> None:
    """Another queue of the name, perhaps with a dead message."""
    await desk.store.delete(desk.name, budget_s=BUDGET_S)
    await desk.create(max_attempts=1)
    if dies:
        await desk.put(b"new", ids=[dies])
        await kill(desk)


async def bury(desk: Desk, *names: str) -> None:
    """Messages with these ids die."""
    await desk.put(*[b"x"] * len(names), ids=names)
    for delivery in await desk.take(len(names)):
        await desk.give_back(delivery.lease)


@pytest.mark.parametrize("ids", [(), ("n",)], ids=["all", "by-id"])
async def test_a_redrive_goes_no_further_in_the_next_queue(here: Desk, ids: Sequence[str]) -> None:
    await bury(here, "m", "n")
    step = await move(here, here, most=1, ids=["m"] if ids else ())
    assert step.moved == 1
    await make_anew(here, dies="n")
    with pytest.raises(QueueDeleted) as said:
        await move(here, here, bounds=step.bounds, ids=ids)
    assert said.value.metadata == {"queue": here.name}
    assert await where(here) == [(0, 1)]


@pytest.mark.parametrize("ids", [(), ("n",)], ids=["all", "by-id"])
async def test_a_redrive_takes_nothing_from_the_next_queue(here: Desk, there: Desk, ids: Sequence[str]) -> None:
    await bury(here, "m", "n")
    step = await move(here, there, most=1, ids=["m"] if ids else ())
    assert step.moved == 1
    await make_anew(here, dies="n")
    with pytest.raises(QueueDeleted) as said:
        await move(here, there, bounds=step.bounds, ids=ids)
    assert said.value.metadata == {"queue": here.name}
    assert await where(here, there) == [(0, 1), (1, 0)]


async def test_a_redrive_puts_nothing_into_the_next_target(here: Desk, there: Desk) -> None:
    await bury(here, "m", "n")
    step = await move(here, there, most=1)
    await make_anew(there)
    with pytest.raises(QueueDeleted) as said:
        await move(here, there, bounds=step.bounds)
    assert said.value.metadata == {"queue": there.name}
    assert await where(here, there) == [(0, 1), (0, 0)]


async def test_a_redrive_that_finds_either_queue_gone_is_told_so(here: Desk, there: Desk) -> None:
    await bury(here, "m", "n")
    step = await move(here, there, most=1)
    for desk in (there, here):
        await desk.store.delete(desk.name, budget_s=BUDGET_S)
        with pytest.raises(QueueDeleted) as said:
            await move(here, there, bounds=step.bounds)
        assert said.value.metadata == {"queue": desk.name}
    for desk in (there, here):
        await desk.create()


async def test_a_redrive_is_not_done_because_its_queue_went_on_the_way(
    here: Desk, there: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bury(here, "m", "n")
    ask = here.store._ask

    async def deletes(script: str, *arguments: object, **named: object) -> object:
        answer = await ask(script, *arguments, **named)  # type: ignore[arg-type]
        if script == "drop_dead":
            await make_anew(here)
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(here.store, "_ask", deletes)
        step = await move(here, there, most=1)
    assert (step.moved, step.remaining) == (1, 1)
    with pytest.raises(QueueDeleted):
        await move(here, there, bounds=step.bounds)


async def test_ids_are_looked_for_step_by_step_in_a_queue_that_nobody_knew(here: Desk, there: Desk) -> None:
    here.raw.delete(here.key("meta"))  # as a foreign client makes one
    step = await move(here, there, ids=["m"])
    assert (step.done, step.not_found) == (1, ["m"])
    step = await move(here, there, ids=["n"], bounds=step.bounds)
    assert (step.done, step.not_found) == (1, ["n"])


@pytest.mark.parametrize("ids", [(), ("m",)], ids=["all", "by id"])
@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["here", "elsewhere"])
async def test_nothing_is_put_into_a_bounded_line_while_a_foreign_client_holds_the_producers_role(
    here: Desk, there: Desk, ids: Sequence[str], is_elsewhere: bool
) -> None:
    """It may have found the room already that it is about to take."""
    await here.put(b"x", ids=["m"])
    await kill(here)
    target = there if is_elsewhere else here
    await target.store.update(target.name, Policy(bound=1), ["bound"], budget_s=BUDGET_S)
    target.raw.rpop(target.key("producer_free"))
    step = await move(here, target, ids=ids)
    assert (step.moved, step.done, step.is_full, step.not_found) == (0, 0, True, [])
    assert ((await here.counts()).dead, (await target.counts()).length) == (1, 0)
    target.raw.lpush(target.key("producer_free"), b"0")
    assert (await move(here, target, ids=ids)).moved == 1


async def test_a_role_that_is_held_keeps_nothing_out_of_a_line_without_bound(here: Desk) -> None:
    await here.put(b"x", ids=["m"])
    await kill(here)
    here.raw.rpop(here.key("producer_free"))
    assert (await move(here, here)).moved == 1
    here.raw.lpush(here.key("producer_free"), b"0")


@pytest.mark.parametrize(("is_elsewhere", "told"), [(False, "STALE"), (True, "GONE")], ids=["here", "elsewhere"])
async def test_what_the_lease_is_with_which_it_died(here: Desk, there: Desk, is_elsewhere: bool, told: str) -> None:
    await here.put(b"x", ids=["m"])
    delivery = await here.take_one()
    await here.give_back(delivery.lease)
    assert await here.ack(delivery.lease) == ["DEAD"]
    await move(here, there if is_elsewhere else here)
    assert await here.ack(delivery.lease) == [told]
