"""The benchmark's own gRPC client beside a real gRPC server: what it counts as answered, and what as failed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from bench.http2 import Flood, flood

CALLS = 300


class Service(grpc.GenericRpcHandler):
    """Answers a request with itself and a '+'; refuses '!'."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    async def answer(self, request: bytes, context: Any) -> bytes:
        self.seen.append(request)
        if request == b"!":
            await context.abort(grpc.StatusCode.NOT_FOUND, "no")
        return request + b"+"

    def service(self, handler_call_details: Any) -> Any:
        assert handler_call_details.method == "/a.Service/Call"
        return grpc.unary_unary_rpc_method_handler(self.answer)


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Service, str]]:
    service, server = Service(), grpc.aio.server()
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield service, f"127.0.0.1:{port}"
    await server.stop(None)


async def load(address: str, first: list[bytes], calls: int = CALLS) -> Flood:
    return await flood(address, "/a.Service/Call", first, lambda reply: reply, calls=calls, connections=2)


async def test_every_request_follows_from_the_reply_before() -> None:
    async with serving() as (service, address):
        done = await load(address, [b"a", b"b", b"c"])
    assert (done.answered, done.failed) == (CALLS, 0)
    for letter in (b"a", b"b", b"c"):
        chain = sorted(one for one in service.seen if one.startswith(letter))
        assert chain == [letter + b"+" * n for n in range(len(chain))]


async def test_a_call_that_ends_with_an_error_counts_as_failed() -> None:
    async with serving() as (_, address):
        done = await load(address, [b"!"], calls=5)
    assert (done.answered, done.failed) == (0, 5)


async def test_more_than_a_connection_may_send_at_once_waits_for_its_window() -> None:
    async with serving() as (service, address):
        done = await load(address, [b"x" * 15_000] * 20, calls=200)
    assert (done.answered, done.failed) == (200, 0)
    assert all(one.startswith(b"x" * 15_000) for one in service.seen)
