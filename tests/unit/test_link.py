"""The way to the store: which calls are on it at a time, and which wait here."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from redis.exceptions import ResponseError

from harness.clocks import run
from headwayd.domain.errors import OutcomeUnknown, StoreUnavailable
from headwayd.store import wire
from headwayd.store.connections import ConnectionSource
from headwayd.store.link import Link, ScriptOrder
from headwayd.store.scripts import Script
from headwayd.store.trouble import Unlooked

SCRIPT = Script("put", b"return {}", b"0" * 40)
READING = Script("describe", b"return {}", b"1" * 40)


class FakeStore:
    """Knows what was sent to it, on whatever connection, and not answered yet: by the one argument of each call."""

    def __init__(self) -> None:
        self.under_way: dict[str, asyncio.Future[None]] = {}
        self.pieces: list[list[str]] = []  # what came together
        self.connections: list[FakeConnection] = []
        self.run = "one"  # which process it is

    async def open(self) -> FakeConnection:
        """A connection."""
        self.connections.append(FakeConnection(self))
        return self.connections[-1]

    def answer(self, name: str) -> None:
        """It has done this."""
        self.under_way.pop(name).set_result(None)


class FakeConnection:
    """One of redis-py, and its transport in one. Answers in order, when the store has done it."""

    def __init__(self, store: FakeStore) -> None:
        self._store = store
        self._reader = SimpleNamespace(_buffer=b"", at_eof=lambda: False)
        self._parser = SimpleNamespace(parse_error=ResponseError)
        self._writer = SimpleNamespace(transport=self)
        self._due: list[tuple[bytes, asyncio.Future[None]]] = []
        self.protocol: asyncio.Protocol | None = None
        self.is_closed = False
        self._said: list[bytes] = []

    async def send_packed_command(self, packed: Sequence[bytes], check_health: bool) -> None:
        """What a connection is asked when it is new: whether transactions are permitted, and which process it is."""
        asked = {
            b"*1\r\n$5\r\nMULTI\r\n*1\r\n$4\r\nEXEC\r\n": [b"OK", b"*0"],
            b"*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n": [b"# Server\r\nrun_id:%s\r\n" % self._store.run.encode()],
        }
        assert not check_health
        self._said += asked[b"".join(packed)]

    async def read_response(self) -> bytes:
        """They are, and this one."""
        return self._said.pop(0)

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        """Who hears of what comes."""
        self.protocol = protocol

    def is_closing(self) -> bool:
        """Whether it can be used no more."""
        return self.is_closed

    def writelines(self, packed: Sequence[bytes]) -> None:
        """Each command is an array of strings, of which the last are its echo, its channels and its argument."""
        names = []
        for command in packed:
            *_, echo, _, name = command.split(b"\r\n")[2::2]
            answer = self._store.under_way[name.decode()] = asyncio.get_running_loop().create_future()
            answer.add_done_callback(self._tell)
            self._due.append((echo, answer))
            names.append(name.decode())
        self._store.pieces.append(names)

    def _tell(self, _: object) -> None:
        while self._due and self._due[0][1].done() and not self.is_closed:
            echo, _answer = self._due.pop(0)
            self.hear(b"*1\r\n$%d\r\n%s\r\n" % (len(echo), echo))

    def hear(self, data: bytes) -> None:
        """Something comes from the store."""
        assert self.protocol is not None
        self.protocol.data_received(data)

    def abort(self) -> None:
        """The end."""
        self.is_closed = True

    _close = abort


@pytest.fixture
def store() -> FakeStore:
    """Does nothing until it is told."""
    return FakeStore()


@pytest.fixture
async def link(store: FakeStore) -> AsyncIterator[Link]:
    """Leads there."""
    link = Link(cast(ConnectionSource, store), call_timeout_s=60)
    yield link
    await settled()
    while store.under_way:
        for name in tuple(store.under_way):
            store.answer(name)
        await settled()
    await link.close()


def call(link: Link, name: str, *, is_long: bool, budget_s: float = 60) -> asyncio.Task[list[Any]]:
    """A call that begins at once."""
    order = ScriptOrder(SCRIPT, "base", "channels", [name], is_long=is_long)
    return asyncio.create_task(link.call(order, budget_s=budget_s))


async def settled() -> None:
    """Whatever can happen by itself has happened."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_short_calls_that_come_at_once_go_together(store: FakeStore, link: Link) -> None:
    calls = [call(link, name, is_long=False) for name in "abc"]
    await settled()
    assert store.pieces == [["a", "b", "c"]]
    for name in "abc":
        store.answer(name)
    await asyncio.gather(*calls)


async def test_of_long_calls_two_are_under_way_and_each_is_sent_by_itself(store: FakeStore, link: Link) -> None:
    calls = [call(link, name, is_long=True) for name in "abcd"]
    await settled()
    assert store.pieces == [["a"], ["b"]]
    store.answer("a")
    await settled()
    assert store.pieces == [["a"], ["b"], ["c"]]
    assert [one.done() for one in calls] == [True, False, False, False]
    store.answer("b")
    store.answer("c")
    await settled()
    store.answer("d")
    await asyncio.gather(*calls)


async def test_the_further_away_the_store_is_the_more_long_calls_are_under_way(
    store: FakeStore, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(wire, "time", SimpleNamespace(perf_counter=lambda: now_s))

    async def answer_short(way_s: float) -> None:
        nonlocal now_s
        short = call(link, "short", is_long=False)
        await settled()
        now_s += way_s
        store.answer("short")
        await short

    await answer_short(0.0022)
    calls = [call(link, f"{number}", is_long=True) for number in range(12)]
    await settled()
    assert list(store.under_way) == ["0", "1", "2", "3", "4", "5"]
    await answer_short(0.0003)  # it is near: the first was kept waiting
    for number in range(4):
        store.answer(f"{number}")
    await settled()
    assert list(store.under_way) == ["4", "5"]
    store.answer("4")
    await settled()
    assert list(store.under_way) == ["5", "6"]
    link.drop_connections()  # to whatever is there by now
    store.answer("5")  # by who was there before
    await settled()
    await answer_short(1.0)
    calls += [call(link, f"more {number}", is_long=True) for number in range(20)]
    await settled()
    assert len(store.under_way) == 12
    while store.under_way:
        store.answer(next(iter(store.under_way)))
        await settled()
    await asyncio.gather(*calls)


async def test_a_short_call_waits_for_no_long_one(store: FakeStore, link: Link) -> None:
    long = [call(link, name, is_long=True) for name in "abc"]
    await settled()
    short = call(link, "short", is_long=False)
    await settled()
    assert set(store.under_way) == {"a", "b", "short"}
    store.answer("short")
    await short
    assert not any(one.done() for one in long)


async def test_a_long_call_whose_time_is_up_before_its_turn_is_never_sent(store: FakeStore, link: Link) -> None:
    first = [call(link, name, is_long=True) for name in "ab"]
    late = call(link, "late", is_long=True, budget_s=0.01)
    with pytest.raises(StoreUnavailable):
        await late
    store.answer("a")
    await settled()
    last = call(link, "last", is_long=True)
    await settled()
    assert store.pieces == [["a"], ["b"], ["last"]]
    store.answer("last")
    store.answer("b")
    await asyncio.gather(*first, last)


def test_a_long_call_that_the_store_does_not_answer_holds_up_no_other_for_good(store: FakeStore) -> None:
    async def scene() -> None:
        link = Link(cast(ConnectionSource, store), call_timeout_s=1)
        calls = [call(link, name, is_long=True) for name in "abc"]
        await settled()
        store.under_way.clear()  # it is silent for ever
        await asyncio.wait(calls[:2])
        await settled()
        assert list(store.under_way) == ["c"]
        store.answer("c")
        await calls[2]
        assert all(one.exception() for one in calls[:2])
        await link.close()

    run(scene)


async def test_what_nobody_asked_for_ends_the_connection_and_no_other_call(store: FakeStore, link: Link) -> None:
    first = call(link, "a", is_long=False)
    await settled()
    store.answer("a")
    await first
    store.connections[0].hear(b"+stray\r\n")
    assert store.connections[0].is_closed
    second = call(link, "b", is_long=False)
    await settled()
    assert len(store.connections) == 2
    store.answer("b")
    await second


@pytest.mark.parametrize("bytes_of_none", [b"*1\r\n$2\r\nno\r\n", b"+OK\r\n", b"*0\r\n", b"?!\r\n"])
async def test_a_reply_that_is_none_of_this_call_is_not_believed(
    store: FakeStore, link: Link, bytes_of_none: bytes
) -> None:
    calls = [call(link, name, is_long=False) for name in "ab"]
    await settled()
    store.connections[0].hear(bytes_of_none)
    assert store.connections[0].is_closed
    for one in calls:
        with pytest.raises(OutcomeUnknown):
            await one
    store.under_way.clear()


async def test_calls_behind_as_many_as_there_are_connections_go_together_when_one_is_free(
    store: FakeStore, link: Link
) -> None:
    calls = await busy_with(link, 16)
    names = [str(number) for number in range(450)]
    for name in names:  # each in a turn of its own
        calls.append(call(link, name, is_long=False))
        await asyncio.sleep(0)
    await settled()
    assert len(store.connections) == len(store.pieces) == 16
    for number in (3, 1, 2):
        store.answer(f"busy {number}")
        await settled()
    assert store.pieces[16:] == [names[:200], names[200:400], names[400:]]
    for name in tuple(store.under_way):
        store.answer(name)
    await asyncio.gather(*calls)
    assert len(store.connections) == 16


async def test_a_question_and_a_long_call_wait_for_no_others_than_are_under_way(store: FakeStore, link: Link) -> None:
    calls = await busy_with(link, 16)
    calls += [call(link, name, is_long=False) for name in ("a", "b")]
    await settled()
    asked = asyncio.create_task(link.command("ECHO", "echo", "", "question"))
    calls.append(call(link, "long", is_long=True))
    await settled()
    for number in range(3):
        store.answer(f"busy {number}")
        await settled()
    assert store.pieces[16:] == [["question"], ["long"], ["a", "b"]]
    for name in tuple(store.under_way):
        store.answer(name)
    await asyncio.gather(asked, *calls)


async def test_a_connection_that_fails_in_a_way_of_its_own_costs_no_place(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Link(cast(ConnectionSource, store), call_timeout_s=5)

    async def fail() -> None:
        raise RuntimeError("nobody knows this one")

    with monkeypatch.context() as failing:
        failing.setattr(store, "open", fail)
        for number in range(16):
            with pytest.raises(StoreUnavailable):
                await call(link, f"failed {number}", is_long=False, budget_s=0.1)
    again = await busy_with(link, 16)
    assert len(store.under_way) == 16
    for name in tuple(store.under_way):
        store.answer(name)
    await asyncio.gather(*again)
    await link.close()


async def test_connections_that_were_dropped_are_used_no_more(store: FakeStore, link: Link) -> None:
    calls = [call(link, name, is_long=False) for name in "a"]
    await settled()
    link.drop_connections()
    store.answer("a")
    await calls[0]  # what is under way is not disturbed
    assert store.connections[0].is_closed
    again = call(link, "b", is_long=False)
    await settled()
    store.answer("b")
    await again
    assert len(store.connections) == 2


async def busy_with(link: Link, count: int) -> list[asyncio.Task[list[Any]]]:
    """So many calls, each by itself."""
    calls = []
    for number in range(count):
        calls.append(call(link, f"busy {number}", is_long=False))
        await settled()
    return calls


async def given_up(calls: Sequence[asyncio.Task[list[Any]]]) -> None:
    """Nobody waits for them any more."""
    for one in calls:
        one.cancel()
    await asyncio.wait(calls)


async def test_however_many_were_given_up_before_a_connection_is_free_all_can_be_used_again(
    store: FakeStore, link: Link
) -> None:
    calls = await busy_with(link, 16)
    waiting = []
    for number in range(1_000):
        waiting.append(call(link, f"given up {number}", is_long=False))
        for _ in range(3):
            await asyncio.sleep(0)  # each comes by itself
    await given_up(waiting)
    for number in range(16):
        store.answer(f"busy {number}")
        await settled()
    await asyncio.gather(*calls)
    again = await busy_with(link, 16)
    assert len(store.under_way) == 16
    assert len(store.pieces) == 32  # nothing that was given up was sent
    for name in tuple(store.under_way):
        store.answer(name)
    await asyncio.gather(*again)
    assert len(store.connections) == 16


class Payload(str):
    """Tells by a weak reference whether it is kept."""

    __slots__ = ("__weakref__",)


async def test_of_calls_that_were_given_up_nothing_is_kept_while_the_store_is_silent(
    store: FakeStore, link: Link
) -> None:
    calls = await busy_with(link, 16)
    kept: weakref.WeakSet[Payload] = weakref.WeakSet()
    for number in range(10):
        payload = Payload(number)
        kept.add(payload)
        waiting = call(link, payload, is_long=False)
        del payload
        await settled()
        await given_up([waiting])
        del waiting
    last = call(link, "last", is_long=False)
    await settled()
    gc.collect()
    assert len(kept) == 0
    store.answer("busy 0")
    await settled()
    store.answer("last")
    await last
    for number in range(1, 16):
        store.answer(f"busy {number}")
    await asyncio.gather(*calls)


async def test_the_error_of_a_call_is_free_as_soon_as_it_was_dealt_with(link: Link) -> None:
    gc.disable()  # no cycles either
    try:
        try:
            await link.call(ScriptOrder(SCRIPT, "base", "channels", ["late"], is_long=False), budget_s=0)
        except StoreUnavailable as error:
            kept = weakref.ref(error)
        await settled()
        assert kept() is None
    finally:
        gc.enable()


async def test_long_calls_that_were_given_up_before_a_connection_is_free_hold_up_no_other(
    store: FakeStore, link: Link
) -> None:
    calls = await busy_with(link, 16)
    waiting = [call(link, name, is_long=True) for name in "ab"]
    await settled()
    later = [call(link, name, is_long=True) for name in "cd"]
    await settled()
    await given_up(waiting)
    for name in ("busy 0", "busy 1"):
        store.answer(name)
        await settled()
    assert store.pieces[16:] == [["c"], ["d"]]
    for name in tuple(store.under_way):
        store.answer(name)
    await asyncio.gather(*calls, *later)


@pytest.mark.parametrize("is_long", [False, True])
async def test_what_would_be_written_is_not_sent_on_a_connection_that_may_not(store: FakeStore, is_long: bool) -> None:
    """Though it might have when the call came: the first connection to another server is opened only then."""
    may = [True]
    link = Link(cast(ConnectionSource, store), call_timeout_s=60, may_write=lambda _: may[0])
    writing = call(link, "a", is_long=is_long)
    reading = asyncio.create_task(
        link.call(ScriptOrder(READING, "base", "channels", ["b"], is_long=is_long), budget_s=60)
    )
    await asyncio.sleep(0)
    may[0] = False
    await settled()
    assert [*store.under_way] == ["b"]
    with pytest.raises(Unlooked):
        await writing
    store.answer("b")
    await reading
    may[0] = True
    writing = call(link, "c", is_long=is_long)
    await settled()
    store.answer("c")
    await writing
    await link.close()


async def test_what_a_server_has_said_counts_on_no_connection_to_another_one(store: FakeStore) -> None:
    """Though nobody tells that it is another one: its address is the same."""
    link = Link(cast(ConnectionSource, store), call_timeout_s=60, may_write=lambda link: link.refusal == "")
    link.note("", run="one")
    before = call(link, "a", is_long=False)
    await settled()
    store.run = "other"
    with pytest.raises(Unlooked):
        await call(link, "b", is_long=False, budget_s=2)
    store.answer("a")
    await before
    assert store.connections[0].is_closed
    link.note("", run="one")  # which comes late
    with pytest.raises(Unlooked):
        await call(link, "c", is_long=False, budget_s=2)
    link.note("", run="other")
    writing = call(link, "d", is_long=False)
    await settled()
    store.answer("d")
    await writing
    assert len(store.connections) == 2
    await link.close()


async def test_where_it_does_not_matter_which_server_it_is_none_is_asked(store: FakeStore) -> None:
    link = Link(cast(ConnectionSource, store), call_timeout_s=60)
    link.note("", run="")
    for name in "ab":
        writing = call(link, name, is_long=False)
        await settled()
        store.answer(name)
        await writing
        store.connections[-1].abort()
        store.run = "other"
    assert (link.refusal, len(store.connections)) == ("", 2)
    await link.close()


@pytest.mark.parametrize("is_long", [True, False])
async def test_for_who_still_waits_when_the_link_is_closed_no_connection_is_opened(
    store: FakeStore, is_long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Link(cast(ConnectionSource, store), call_timeout_s=60)
    busy = []
    for number in range(16):  # it is silent
        busy.append(call(link, f"{number}", is_long=False))
        await settled()
    waiting = [call(link, f"late {number}", is_long=is_long) for number in range(5)]
    await settled()
    monkeypatch.setattr(link, "_call_timeout_s", 0.0)
    await link.close()
    await settled()
    assert {type(error) for error in await asyncio.gather(*busy, return_exceptions=True)} == {OutcomeUnknown}
    assert len(store.connections) == 16
    assert all(connection.is_closed for connection in store.connections)
    for one in waiting:
        with pytest.raises(StoreUnavailable):
            await one
