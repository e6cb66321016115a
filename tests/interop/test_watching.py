"""Watchers see what foreign clients do to the line."""

from __future__ import annotations

from interop.foreign import Foreign
from wire.calls import Keys, Line, Message
from wire.watches import DELETED, NOT_KNOWN, positions, watching


async def test_watchers_see_foreign_puts_and_gets(line: Line, foreign: Foreign) -> None:
    await foreign.call("create")
    await foreign.call("put", b"first")
    await line.put(Message(id="mine", payload=b"second"))
    async with watching(line, "mine") as watched:
        assert (await watched.position(2)).position.length == 2
        await foreign.call("put", b"third")
        assert await foreign.call("get") == b"first"
        told = await watched.position(1)
        assert told.position.length == 2
        assert (await foreign.call("get")).endswith(b"second")
        ended = await watched.finished()
        assert (ended.outcome, ended.cause) == (NOT_KNOWN, "taken by a foreign client")
        await watched.end()
        assert positions(watched.told, "mine") == [2, 1]


async def test_a_message_that_came_back_and_that_a_foreign_client_took_is_told(line: Line, foreign: Foreign) -> None:
    await foreign.call("create")
    await line.put(*(Message(id=id_, payload=id_.encode()) for id_ in ("one", "two")))
    lease = (await line.take_one()).lease
    async with watching(line, "one", "two") as watched:
        await watched.leased("one")
        await watched.position(1, "two")
        await line.delay(lease, delay_ms=0)
        assert (await watched.position(2, "two")).position.moved_back
        assert (await foreign.call("get")).endswith(b"one")
        await watched.position(1, "two")
        async with watching(line, "one") as late:
            assert (await late.finished()).outcome == NOT_KNOWN
    assert [one.finished.outcome for one in watched.told if one.WhichOneof("event") == "finished"] == [NOT_KNOWN]


async def test_a_foreign_delete_ends_every_watch(line: Line, foreign: Foreign, keys: Keys) -> None:
    await foreign.call("create")
    await line.put(Message(id="mine", payload=b"x"))
    async with watching(line, "mine") as watched:
        await watched.position(1)
        await foreign.call("delete")
        assert (await watched.finished()).outcome == DELETED
        await watched.end()


async def test_a_foreign_delete_and_create_is_another_queue(line: Line, foreign: Foreign) -> None:
    await foreign.call("create")
    await line.put(Message(id="mine", payload=b"x"))
    async with watching(line, "mine") as watched:
        await watched.position(1)
        await foreign.call("delete")
        await foreign.call("create")
        await foreign.call("put", b"other")
        assert (await watched.finished()).outcome == DELETED
        await watched.end()
