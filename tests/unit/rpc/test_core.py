"""The server of our own: a stock client hears the same from it as from grpc.aio's, and it keeps nothing."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from harness.conditions import eventually
from headwayd.rpc.core.call import Call
from headwayd.rpc.core.completions import Completions
from headwayd.rpc.core.server import Server

TIMEOUT_S = 10
SERVERS = ("grpc.aio", "core", "core, early", "core, pausing")
VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
ANY_PATH = "/a.Service/Any"

both = pytest.mark.parametrize("kind", SERVERS)
ours = pytest.mark.parametrize("kind", SERVERS[1:])


class Router(grpc.GenericRpcHandler):
    """One handler for every path but those in `Nothing`."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        if "Nothing" in handler_call_details.method:
            return None
        if "Broken" in handler_call_details.method:
            raise ValueError("a defect")
        return self._handler


def made(kind: str) -> tuple[Any, Completions | None]:
    if kind == "grpc.aio":
        return grpc.aio.server(), None
    completions = Completions(pauses=lambda _calls: kind == "core, pausing")
    server = Server(completions)
    if kind == "core, early":
        server.read_early([ANY_PATH, "/a.Service/Nothing"])
    return server, completions


@asynccontextmanager
async def serving(kind: str, handler: Any) -> AsyncIterator[tuple[Any, Any]]:
    server, completions = made(kind if handler.unary_unary else kind.removesuffix(", early"))
    server.add_generic_rpc_handlers((Router(handler),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            yield server, channel
    finally:
        await server.stop(None)
        if completions is not None:
            completions.close()


def unary(behaviour: Callable[[bytes, Any], Any]) -> Any:
    return grpc.unary_unary_rpc_method_handler(behaviour)


def made_of(kind: Any, behaviour: Any) -> Any:
    """A handler of this kind; the types know those of gRPC's threaded server only."""
    return kind(behaviour)


def call(channel: Any, request: bytes = b"", *, path: str = ANY_PATH, **more: Any) -> Any:
    return channel.unary_unary(path)(request, timeout=more.pop("timeout", TIMEOUT_S), **more)


async def failed(calling: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as failing:
        await calling
    return failing.value.code(), failing.value.details() or ""


@both
async def test_calls_of_each_kind_are_answered(kind: str) -> None:
    async def echo(request: bytes, _context: object) -> bytes:
        return request

    async with serving(kind, unary(echo)) as (_, channel):
        answers = await asyncio.gather(*(call(channel, b"%d" % i) for i in range(300)))
        assert answers == [b"%d" % i for i in range(300)]

    async def count(request: bytes, _context: object) -> AsyncIterator[bytes]:
        for i in range(int(request)):
            yield b"%d" % i

    async with serving(kind, made_of(grpc.unary_stream_rpc_method_handler, count)) as (_, channel):
        replies = channel.unary_stream(ANY_PATH)(b"50", timeout=TIMEOUT_S)
        assert [reply async for reply in replies] == [b"%d" % i for i in range(50)]

    async def join(requests: AsyncIterator[bytes], _context: object) -> bytes:
        return b" ".join([request async for request in requests])

    async with serving(kind, made_of(grpc.stream_unary_rpc_method_handler, join)) as (_, channel):
        assert await channel.stream_unary(ANY_PATH)(iter([b"a", b"b", b"c"]), timeout=TIMEOUT_S) == b"a b c"

    async def double(requests: AsyncIterator[bytes], context: Any) -> None:
        async for request in requests:
            await context.write(request)
            await context.write(request)

    async with serving(kind, made_of(grpc.stream_stream_rpc_method_handler, double)) as (_, channel):
        replies = channel.stream_stream(ANY_PATH)(iter([b"x" * 100_000, b""]), timeout=TIMEOUT_S)
        assert [len(reply) async for reply in replies] == [100_000, 100_000, 0, 0]


@both
async def test_of_a_call_the_handler_knows_what_came_along(kind: str) -> None:
    known: dict[str, Any] = {}

    async def look(_request: bytes, context: Any) -> bytes:
        known.update(
            metadata=dict(context.invocation_metadata()),
            left=context.time_remaining(),
            peer=context.peer(),
            auth=context.auth_context(),
            variable=VARIABLE.get(),
            identities=context.peer_identities(),
            key=context.peer_identity_key(),
        )
        context.set_trailing_metadata((("also", "this"),))
        await context.send_initial_metadata((("first", "that"),))
        return b""

    VARIABLE.set("of whoever started it")
    async with serving(kind, unary(look)) as (_, channel):
        VARIABLE.set("of somebody else")
        calling = call(channel, metadata=(("key", "value"), ("raw-bin", b"\x00\xff")))
        await calling
        assert ("first", "that") in tuple(await calling.initial_metadata())
        assert ("also", "this") in tuple(await calling.trailing_metadata())
        assert (known["metadata"]["key"], known["metadata"]["raw-bin"]) == ("value", b"\x00\xff")
        assert TIMEOUT_S - 5 < known["left"] < TIMEOUT_S * 1.02  # on its way it is rounded up to three digits
        assert known["peer"].startswith("ipv4:127.0.0.1:")
        assert known["variable"] == "of whoever started it"
        assert not known["identities"]
        assert not known["key"]
        await call(channel, timeout=None)
        assert known["left"] is None


@both
async def test_a_call_ends_as_its_handler_says(kind: str) -> None:
    async def end(request: bytes, context: Any) -> Any:
        match request:
            case b"abort":
                await context.abort(grpc.StatusCode.NOT_FOUND, "näme", (("more", "of it"),))
            case b"swallowed":
                with suppress(grpc.aio.AbortError):
                    await context.abort(grpc.StatusCode.ABORTED, "first")
            case b"code":
                context.set_code(grpc.StatusCode.DATA_LOSS)
                context.set_details("lost")
            case b"defect":
                raise ValueError("a defect")
            case b"no bytes":
                return "text"
            case b"bad metadata":
                context.set_trailing_metadata((("Not A Key", "x"),))
            case b"cancelled":
                raise asyncio.CancelledError
        return b"fine"

    async with serving(kind, unary(end)) as (_, channel):
        with pytest.raises(grpc.aio.AioRpcError) as failing:
            await call(channel, b"abort")
        assert (failing.value.code(), failing.value.details()) == (grpc.StatusCode.NOT_FOUND, "näme")
        assert ("more", "of it") in tuple(failing.value.trailing_metadata())
        assert await failed(call(channel, b"swallowed")) == (grpc.StatusCode.ABORTED, "first")
        assert await failed(call(channel, b"code")) == (grpc.StatusCode.DATA_LOSS, "lost")
        code, text = await failed(call(channel, b"defect"))
        assert (code, text) == (grpc.StatusCode.UNKNOWN, "Unexpected <class 'ValueError'>: a defect")
        assert await failed(call(channel, path="/a.Service/Nothing")) == (
            grpc.StatusCode.UNIMPLEMENTED,
            "Method not found!",
        )
        if kind != "grpc.aio":  # there it waits for its deadline
            assert (await failed(call(channel, b"no bytes")))[0] is grpc.StatusCode.UNKNOWN
            assert (await failed(call(channel, b"bad metadata")))[0] is grpc.StatusCode.INTERNAL
            assert (await failed(call(channel, b"cancelled")))[0] is grpc.StatusCode.CANCELLED
            assert (await failed(call(channel, path="/a.Service/Broken")))[0] is grpc.StatusCode.UNKNOWN
        assert await call(channel, b"") == b"fine"


@both
async def test_a_stream_may_be_aborted_behind_replies(kind: str) -> None:
    async def end(_request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield b"one"
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no more")

    async with serving(kind, made_of(grpc.unary_stream_rpc_method_handler, end)) as (_, channel):
        replies = channel.unary_stream(ANY_PATH)(b"", timeout=TIMEOUT_S)
        assert await replies.read() == b"one"
        assert await failed(replies.read()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "no more")


@pytest.mark.parametrize("last", ["reply", "end", "abort"])
@pytest.mark.parametrize(("count", "size"), [(1, 10), (50, 10), (200, 10_000), (3, 1_000_000)])
@ours
async def test_what_is_written_ahead_comes_with_the_next_reply_or_the_end(
    kind: str, count: int, size: int, last: str
) -> None:
    may_end = asyncio.Event()

    async def tell(_request: bytes, context: Any) -> None:
        for i in range(count):
            await context.write_ahead(b"%0*d" % (size, i))
        if last == "reply":
            await context.write(b"last")
            await may_end.wait()
        elif last == "abort":
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no more")

    async with serving(kind, made_of(grpc.unary_stream_rpc_method_handler, tell)) as (_, channel):
        replies = channel.unary_stream(ANY_PATH)(b"", timeout=TIMEOUT_S)
        told = [await replies.read() for _ in range(count)]
        assert [(len(one), one.lstrip(b"0")) for one in told] == [(size, b"%d" % i if i else b"") for i in range(count)]
        if last == "abort":
            assert await failed(replies.read()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "no more")
            return
        if last == "reply":
            assert await replies.read() == b"last"
        may_end.set()
        assert await replies.read() is grpc.aio.EOF


@pytest.mark.parametrize("how", ["cancel", "deadline", "connection", "at once"])
@both
async def test_a_handler_is_cancelled_when_its_caller_goes(kind: str, how: str) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def wait(_request: bytes, _context: object) -> bytes:
        began.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.set()
            raise
        return b""

    async with serving(kind, unary(wait)) as (_, channel):
        async with asyncio.timeout(TIMEOUT_S):
            while how == "deadline" and not began.is_set():  # where the machine stalls it passes before that
                assert await _outcome(call(channel, timeout=0.3)) == "DEADLINE_EXCEEDED"
            if how != "deadline":
                calling = call(channel, timeout=60)
                await began.wait()
                if how != "at once":
                    await asyncio.sleep(0.05)
                await channel.close() if how == "connection" else calling.cancel()
            await ended.wait()


@both
async def test_a_stream_s_handler_is_cancelled_when_its_caller_goes(kind: str) -> None:
    ended = asyncio.Event()

    async def wait(requests: AsyncIterator[bytes], context: Any) -> None:
        try:
            async for request in requests:
                await context.write(request)
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.set()
            raise

    async with serving(kind, made_of(grpc.stream_stream_rpc_method_handler, wait)) as (_, channel):
        stream = channel.stream_stream(ANY_PATH)(timeout=TIMEOUT_S)
        await stream.write(b"a")
        assert await stream.read() == b"a"
        stream.cancel()
        async with asyncio.timeout(TIMEOUT_S):
            await ended.wait()


@both
async def test_to_stop_lets_calls_end_within_the_grace_and_cancels_the_others(kind: str) -> None:
    running, outcomes = asyncio.Event(), []

    async def wait(request: bytes, _context: object) -> bytes:
        running.set()
        try:
            await asyncio.sleep(float(request))
        except asyncio.CancelledError:
            outcomes.append("cancelled")
            raise
        outcomes.append("ended")
        return request

    async with serving(kind, unary(wait)) as (server, channel):
        short = asyncio.create_task(_outcome(call(channel, b"0.2")))
        long = asyncio.create_task(_outcome(call(channel, b"60", timeout=70)))
        await running.wait()
        await asyncio.sleep(0.1)
        async with asyncio.timeout(TIMEOUT_S):
            await asyncio.gather(server.stop(1.0), server.stop(1.0))
            assert await short == "OK"
            assert await long != "OK"
            await eventually(lambda: sorted(outcomes) == ["cancelled", "ended"])
            await server.stop(None)


async def _outcome(calling: Any) -> str:
    try:
        await calling
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "OK"


@ours
async def test_a_request_that_nobody_waited_for_is_not_lost(kind: str) -> None:
    """Reading may be cancelled; who reads then gets what came."""
    got: list[bytes] = []
    waited, sent = asyncio.Event(), asyncio.Event()

    async def read(_requests: object, context: Any) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await context.read()
        waited.set()
        await sent.wait()
        await asyncio.sleep(0.1)  # it comes, and nobody reads
        got.extend([await context.read(), await context.read()])
        assert await context.read() is grpc.aio.EOF
        assert await context.read() is grpc.aio.EOF

    async with serving(kind, made_of(grpc.stream_stream_rpc_method_handler, read)) as (_, channel):
        stream = channel.stream_stream(ANY_PATH)(timeout=TIMEOUT_S)
        await waited.wait()
        await stream.write(b"a")
        sent.set()
        await stream.write(b"b")
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        assert await stream.code() is grpc.StatusCode.OK
    assert got == [b"a", b"b"]


@both
async def test_a_write_waits_for_a_caller_who_does_not_read_and_fails_when_it_goes(kind: str) -> None:
    written, outcome = 0, asyncio.get_running_loop().create_future()

    async def flood(_requests: object, context: Any) -> None:
        nonlocal written
        try:
            while True:
                await context.write(b"x" * 1_000_000)
                written += 1
        except BaseException as error:
            outcome.set_result(type(error))
            raise

    async with serving(kind, made_of(grpc.stream_stream_rpc_method_handler, flood)) as (_, channel):
        stream = channel.stream_stream(ANY_PATH)(timeout=TIMEOUT_S)
        await stream.read()
        await asyncio.sleep(0.3)
        assert written < 100
        stream.cancel()
        async with asyncio.timeout(TIMEOUT_S):
            assert issubclass(await outcome, asyncio.CancelledError | grpc.aio.BaseError)


@both
async def test_a_slow_caller_keeps_nobody_from_being_served(kind: str) -> None:
    """More calls than are accepted at a time have begun without their requests."""

    async def echo(request: bytes, _context: object) -> bytes:
        return request

    async with serving(kind, unary(echo)) as (_, channel):
        slow = [channel.stream_unary(ANY_PATH)(timeout=TIMEOUT_S) for _ in range(50)]
        for one in slow:
            await one.wait_for_connection()
        await asyncio.sleep(0.05)
        assert await call(channel, b"now") == b"now"
        for one in slow:
            await one.write(b"late")
            await one.done_writing()
        assert await asyncio.gather(*slow) == [b"late"] * 50


@ours
async def test_nothing_of_a_call_is_kept(kind: str) -> None:
    seen: weakref.WeakSet[Call] = weakref.WeakSet()

    async def end(request: bytes, context: Any) -> bytes:
        seen.add(context)
        if request == b"abort":
            await context.abort(grpc.StatusCode.ABORTED)
        if request == b"wait":
            await asyncio.sleep(60)
        return b""

    async with serving(kind, unary(end)) as (_, channel):
        gc.disable()  # no cycles either
        try:
            for request in (b"", b"abort", b"wait") * 5:
                await _outcome(call(channel, request, timeout=0.1 if request == b"wait" else TIMEOUT_S))
            await eventually(lambda: not seen)
        finally:
            gc.enable()


@ours
async def test_a_request_is_not_kept_as_it_came(kind: str) -> None:
    came: list[bytes] = []
    waits, told = asyncio.Event(), asyncio.Event()

    def decode(raw: bytes) -> int:
        came.append(raw)
        return len(raw)

    async def wait(request: Any, _context: object) -> AsyncIterator[bytes]:
        yield b"%d" % request
        waits.set()
        await told.wait()

    handler: Any = grpc.unary_stream_rpc_method_handler(cast("Any", wait), request_deserializer=decode)
    async with serving(kind, handler) as (_, channel):
        replies = channel.unary_stream(ANY_PATH)(b"x" * 1_000, timeout=TIMEOUT_S)
        assert await replies.read() == b"1000"
        await waits.wait()
        await eventually(lambda: sys.getrefcount(came[0]) == len(("the list", "the argument")))
        told.set()
        assert await replies.read() is grpc.aio.EOF


@ours
async def test_threads_end_with_the_last_call(kind: str) -> None:

    def threads() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "grpc completions"}

    before = threads()  # those of others may be about to end
    began, told, cleaned = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def wait(_request: bytes, context: Any) -> bytes:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.wait_for(told.wait(), TIMEOUT_S)
            with pytest.raises(grpc.aio.AbortError):
                await context.abort(grpc.StatusCode.ABORTED)  # behind the end of the server
            cleaned.set()
        return b""

    async with serving(kind, unary(wait)) as (server, channel):
        calling = asyncio.create_task(_outcome(call(channel)))
        await began.wait()
        own = threads() - before
        assert len(own) == 1
        await server.stop(None)
        assert await calling != "OK"
    assert not cleaned.is_set()
    told.set()
    await eventually(lambda: not own & threads())
    assert cleaned.is_set()


@both
async def test_a_stream_with_much_to_say_leaves_turns_to_others(kind: str) -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def tell(_requests: object, context: Any) -> None:
        counting = asyncio.create_task(others())
        for _ in range(1_000):
            await context.write(b"x")
        counting.cancel()

    async with serving(kind, made_of(grpc.stream_stream_rpc_method_handler, tell)) as (_, channel):
        replies = channel.stream_stream(ANY_PATH)(timeout=TIMEOUT_S)
        assert len([reply async for reply in replies]) == 1_000
    assert turns > 100
