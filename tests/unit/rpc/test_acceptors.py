"""Several gRPC servers of one process, which are one to everybody else."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import psutil
import pytest
import trustme
from grpc_channelz.v1 import channelz_pb2
from grpc_channelz.v1.channelz import ChannelzServicer

from harness.ipv6 import has_ipv6
from headwayd.rpc.acceptors import Acceptors, acceptor_count, share_of
from headwayd.rpc.books import server_ids
from headwayd.sockets import CannotListen
from unit.rpc.holding import Holding

COUNT = 4
LANE = ("a.Service", "Lane")


class Router(grpc.GenericRpcHandler):
    """Answers every method with its name."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        return answering(handler_call_details.method.encode())


def answering(answer: bytes) -> grpc.RpcMethodHandler[bytes, bytes]:
    async def handle(_request: bytes, _context: object) -> bytes:
        return answer

    return grpc.unary_unary_rpc_method_handler(handle)


@asynccontextmanager
async def accepting(
    *listen: str,
    count: int = COUNT,
    shares_addresses: bool = False,
    router: grpc.GenericRpcHandler | None = None,
    credentials: Callable[[], grpc.ServerCredentials] | None = None,
) -> AsyncIterator[tuple[Acceptors, Sequence[str]]]:
    """Acceptors that serve, and their addresses."""
    one = Acceptors(count, options=[], shares_addresses=shares_addresses)
    handlers: Mapping[str, Any] = {"/a.Service/Lane": answering(b"lane")}
    one.serve(handlers, router or Router(), lanes=[LANE])
    bound = await one.start(listen, credentials)
    try:
        yield one, bound
    finally:
        await one.stop(None)


@asynccontextmanager
async def own_connection(address: str, method: str = "/a.Service/Any") -> AsyncIterator[Any]:
    """What calls this method on a connection that nobody else has."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        yield channel.unary_unary(method)


async def called(address: str, method: str = "/a.Service/Any") -> bytes:
    """The answer to a call on a connection of its own."""
    async with own_connection(address, method) as call:
        answer = await call(b"", timeout=10, wait_for_ready=True)
        assert isinstance(answer, bytes)
        return answer


def accepted(ids: frozenset[int]) -> list[int]:
    """How many calls each of these servers began."""
    requests = [channelz_pb2.GetServerRequest(server_id=one) for one in sorted(ids)]
    return [int(ChannelzServicer.GetServer(request, None).server.data.calls_started) for request in requests]


def listeners(address: str) -> int:
    """How many sockets of this process listen on its port."""
    port = int(address.rpartition(":")[2])
    found = psutil.Process().net_connections("tcp")
    return sum(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in found)


async def test_connections_are_spread_over_all_and_each_call_is_answered() -> None:
    before = server_ids()
    async with accepting("127.0.0.1:0") as (_, [address]):
        own = server_ids() - before
        assert len(own) == COUNT
        assert listeners(address) == COUNT
        answers = await asyncio.gather(*(called(address) for _ in range(100)))
        assert Counter(answers) == {b"/a.Service/Any": 100}
        counts = accepted(own)
        assert sum(counts) == 100
        assert all(counts)  # by chance one of them gets none once in 10^12 times
    assert listeners(address) == 0


async def test_each_has_the_lanes() -> None:
    async with accepting("127.0.0.1:0") as (_, [address]):
        answers = await asyncio.gather(*(called(address, "/a.Service/Lane") for _ in range(40)))
        assert set(answers) == {b"lane"}


async def test_what_waits_is_counted_over_all() -> None:
    holding = Holding()
    async with accepting("127.0.0.1:0", router=holding) as (one, [address]):
        count = one.books(lambda: holding.running).pending_count
        accepted_of_all = one.books(lambda: 0).pending_count
        assert count() == 0
        calls = [asyncio.create_task(called(address)) for _ in range(40)]
        await holding.runs(40)
        assert (count(), accepted_of_all()) == (0, 40)
        holding.release.set()
        await asyncio.gather(*calls)


async def test_what_connections_begin_is_counted_until_it_is_counted_anew() -> None:
    async with accepting("127.0.0.1:0", count=1) as (one, [address]):
        books = one.books(lambda: 0)

        async def begun() -> list[int]:
            """By all connections, at the next look."""
            looked = asyncio.Event()
            books.correct(lambda _took_s: looked.set())
            await looked.wait()
            return sorted(seen.begun for seen in books.last_look.connections)

        async with own_connection(address) as call:
            for _ in range(3):
                await call(b"")
            assert await begun() == [3]
            books.count_anew()
            assert await begun() == [3], "it came with that look"
            books.count_anew()
            assert await begun() == [0]
            async with own_connection(address) as other_call:
                for _ in range(5):
                    await other_call(b"")
                await call(b"")
                assert await begun() == [1, 5]
                await call(b"")
                assert await begun() == [2, 5]
                books.count_anew()
                assert await begun() == [0, 0]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "[::]", "0.0.0.0"])
async def test_an_address_is_theirs_alone(host: str) -> None:
    if ":" in host and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    async with accepting(f"{host}:0") as (_, [address]):
        assert listeners(address) >= COUNT
        for count in (COUNT, 1):
            with pytest.raises(CannotListen, match=f"cannot listen on {address.replace('[', '.').replace(']', '.')}"):
                async with accepting(address, count=count):
                    pass
        assert await called(address)


@pytest.mark.parametrize("host", ["[::]", "0.0.0.0"])
async def test_either_address_of_all_is_of_both_families(host: str) -> None:
    if not has_ipv6():
        pytest.skip("this machine has no IPv6")
    async with accepting(f"{host}:0") as (_, [address]):
        port = address.rpartition(":")[2]
        assert await called(f"127.0.0.1:{port}")
        assert await called(f"[::1]:{port}")


async def test_one_alone_leaves_its_address_to_nobody() -> None:
    async with accepting("127.0.0.1:0", count=1) as (_, [address]):
        assert listeners(address) == 1
        with pytest.raises(CannotListen, match="taken"):
            async with accepting(address):
                pass


async def test_an_address_that_is_held_for_several_processes_is_shared() -> None:
    async with (
        accepting("127.0.0.1:0", shares_addresses=True) as (_, [address]),
        accepting(address, shares_addresses=True),
    ):
        assert listeners(address) == 2 * COUNT


async def test_a_socket_of_this_machine_is_served_by_one(short_dir: Path) -> None:
    before = server_ids()
    unix = f"unix:{short_dir}/s"
    async with accepting(unix, "127.0.0.1:0") as (_, bound):
        assert bound[0] == unix
        for _ in range(10):
            assert await called(unix)
        assert sorted(accepted(server_ids() - before)) == [0] * (COUNT - 1) + [10]
        assert listeners(bound[1]) == COUNT


async def test_if_one_address_is_taken_none_is_open() -> None:
    async with AsyncExitStack() as stack:
        _, [taken] = await stack.enter_async_context(accepting("127.0.0.1:0"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            other = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(CannotListen, match=f"cannot listen on {taken}"):
            await stack.enter_async_context(accepting(other, taken))
        assert listeners(other) == 0
        assert listeners(taken) == COUNT


def test_where_few_connections_are_allowed_there_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    counts = [acceptor_count(4, max_connections=most) for most in (10, 499, 500, 999, 1_000, 10_000)]
    assert counts == [1, 1, 2, 3, 4, 4]
    assert acceptor_count(1, max_connections=10_000) == 1


def test_where_connections_are_not_spread_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert acceptor_count(4, max_connections=10_000) == 1


def test_the_shares_are_together_no_less_than_the_whole() -> None:
    assert [share_of(10_000, count) for count in (1, 3, 4)] == [10_000, 3_334, 2_500]


# -- renewed ----------------------------------------------------------------------------------------------------------


async def most_streams(address: str) -> int | None:
    """How many calls at a time a new connection is allowed, as it is told (SETTINGS_MAX_CONCURRENT_STREAMS)."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
    try:
        async with asyncio.timeout(10):
            head = await reader.readexactly(9)
            assert head[3] == 4  # SETTINGS come first
            body = await reader.readexactly(int.from_bytes(head[:3]))
        return dict(struct.iter_unpack(">HL", body)).get(3)
    finally:
        writer.close()


async def gone(before: frozenset[int], count: int) -> None:
    """Waits until there are no more than so many servers beside those."""
    async with asyncio.timeout(10):
        while len(server_ids() - before) > count:  # noqa: ASYNC110 - nothing signals it to the outside
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("shares_addresses", [False, True])
async def test_others_take_their_place_whose_connections_may_have_fewer_calls(*, shares_addresses: bool) -> None:
    before = server_ids()
    async with accepting("127.0.0.1:0", shares_addresses=shares_addresses) as (one, [address]):
        at_first = await most_streams(address)
        await one.renew(7)
        await gone(before, COUNT)
        assert {await most_streams(address) for _ in range(20)} == {7}
        assert await called(address) == b"/a.Service/Any"
        assert await called(address, "/a.Service/Lane") == b"lane"
        assert listeners(address) == COUNT
        await one.renew(None)
        await gone(before, COUNT)
        assert {await most_streams(address) for _ in range(20)} == {at_first}
        assert await called(address) == b"/a.Service/Any"
    await gone(before, 0)


async def test_what_runs_goes_on_to_its_end_and_the_same_client_calls_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headwayd.rpc.acceptors._BETWEEN_STOPS_S", 0.0)
    holding = Holding()
    before = server_ids()
    async with accepting("127.0.0.1:0", router=holding) as (one, [address]):
        count = one.books(lambda: holding.running).pending_count
        async with grpc.aio.insecure_channel(address) as channel:
            call: Any = channel.unary_unary("/a/b")
            calls = [asyncio.ensure_future(call(b"", timeout=30)) for _ in range(20)]
            await holding.runs(20)
            own = server_ids() - before
            await one.renew(7)
            await gone(before, COUNT + 1)  # of the old ones there is that which has the connection
            await asyncio.sleep(0.5)
            assert not any(one.done() for one in calls)
            assert count() == 0  # the old ones are still counted
            later = [asyncio.ensure_future(call(b"", timeout=30)) for _ in range(5)]
            await holding.runs(25)
            assert sum(accepted(server_ids() - before - own)) == 5
            holding.release.set()
            assert await asyncio.gather(*calls, *later) == [b""] * 25
            await gone(before, COUNT)
            async with asyncio.timeout(10):
                while count() != 0:  # noqa: ASYNC110 - the books are a moment behind
                    await asyncio.sleep(0.001)


async def test_with_tls_the_others_serve_it_too() -> None:
    authority = trustme.CA()
    own = authority.issue_cert("localhost")
    pair = (own.private_key_pem.bytes(), own.cert_chain_pems[0].bytes())
    trusting = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    others = server_ids()
    async with AsyncExitStack() as stack:
        serving = accepting("localhost:0", credentials=lambda: grpc.ssl_server_credentials([pair]))
        one, [address] = await stack.enter_async_context(serving)
        channel = await stack.enter_async_context(grpc.aio.secure_channel(address, trusting))
        call: Any = channel.unary_unary("/a/b")
        assert await call(b"", timeout=10) == b"/a/b"
        first = server_ids() - others
        await one.renew(7)
        async with asyncio.timeout(10):
            while first & server_ids():  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
        assert await call(b"", timeout=10, wait_for_ready=True) == b"/a/b"


async def test_while_others_take_their_place_somebody_always_listens() -> None:
    async with accepting("127.0.0.1:0") as (one, [address]):
        renewing = asyncio.create_task(one.renew(7))
        answers = 0
        while not renewing.done() or answers < 50:
            try:
                assert await called(address)
            except grpc.aio.AioRpcError as error:  # it waited at one that stopped just then
                assert error.code() is grpc.StatusCode.CANCELLED
            answers += 1


async def test_to_stop_ends_the_old_ones_too() -> None:
    holding = Holding()
    before = server_ids()
    async with accepting("127.0.0.1:0", router=holding) as (one, [address]):
        calling = asyncio.create_task(called(address, "/a/b"))
        await holding.runs(1)
        await one.renew(7)
        await one.stop(0.1)
        with pytest.raises(grpc.aio.AioRpcError):
            await calling
    await gone(before, 0)
    with pytest.raises(CannotListen, match="going down"):
        await one.renew(None)
    assert listeners(address) == 0


async def test_where_an_address_cannot_be_shared_they_cannot_be_renewed(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with accepting("127.0.0.1:0") as (one, _):
        assert one.can_be_renewed
    async with accepting("127.0.0.1:0", count=1) as (one, _):
        assert one.can_be_renewed
    async with accepting("127.0.0.1:0", count=1, shares_addresses=True) as (one, _):
        assert one.can_be_renewed
    async with accepting("127.0.0.1:0", f"unix:{short_dir}/s") as (one, _):
        assert not one.can_be_renewed
    monkeypatch.setattr("headwayd.rpc.acceptors.platform.system", lambda: "Darwin")
    async with accepting("127.0.0.1:0", count=1) as (one, _):
        assert not one.can_be_renewed


async def test_what_callers_do_with_the_addresses_that_they_are_told_does_not_matter() -> None:
    async with accepting("127.0.0.1:0") as (one, bound):
        assert isinstance(bound, list)
        bound.append("http://127.0.0.1:1")
        await one.renew(7)
        assert one.can_be_renewed
