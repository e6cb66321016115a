"""A call that streams both ways tells how it truly ended, also to one who is writing at that moment."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

import headway
from headway._duplex import Duplex
from headway.v1.queue_service_pb2 import ProduceRequest, ProduceResponse

ROUNDS = 100


class _Ending(grpc.GenericRpcHandler):
    """Answers so many requests, then ends the stream, whatever else comes."""

    def __init__(self) -> None:
        self.answer_count = 0
        self.code = grpc.StatusCode.OK

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any]":
        async def handle(requests: AsyncIterator[ProduceRequest], context: Any) -> AsyncIterator[ProduceResponse]:
            for _ in range(self.answer_count):
                yield ProduceResponse(batch=(await anext(requests)).batch)
            if self.code is not grpc.StatusCode.OK:
                await context.abort(self.code, "as was said")

        return grpc.stream_stream_rpc_method_handler(
            handle, ProduceRequest.FromString, ProduceResponse.SerializeToString
        )


@pytest.fixture
def ending() -> _Ending:
    return _Ending()


@pytest_asyncio.fixture
async def channel(ending: _Ending) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((ending,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as opened:
        yield opened
    await server.stop(None)


def _open(channel: grpc.aio.Channel) -> Duplex[ProduceRequest, ProduceResponse]:
    rpc: Any = channel.stream_stream("/a/B", ProduceRequest.SerializeToString, ProduceResponse.FromString)
    return Duplex(rpc())


async def _write_to_the_end(duplex: Duplex[ProduceRequest, ProduceResponse]) -> None:
    number = 0
    while await duplex.write(ProduceRequest(batch=number)):
        number += 1


async def _read_to_the_end(duplex: Duplex[ProduceRequest, ProduceResponse]) -> int:
    count = 0
    while await duplex.read() is not None:
        count += 1
    return count


@pytest.mark.parametrize("is_reading", [True, False], ids=["reading", "writing only"])
async def test_true_status_is_told_to_one_who_writes(
    ending: _Ending, channel: grpc.aio.Channel, is_reading: bool
) -> None:
    """gRPC itself tells INTERNAL in most of these rounds."""
    ending.code = grpc.StatusCode.PERMISSION_DENIED
    for number in range(ROUNDS):
        ending.answer_count = number % 5
        duplex = _open(channel)
        async with asyncio.timeout(30):
            writing = asyncio.create_task(_write_to_the_end(duplex))
            if not is_reading:
                await writing
            with pytest.raises(headway.PermissionDenied, match="as was said"):
                await _read_to_the_end(duplex)
            await writing


async def test_end_in_good_order_is_no_error_to_one_who_writes(ending: _Ending, channel: grpc.aio.Channel) -> None:
    ending.answer_count = 3
    for _ in range(ROUNDS):
        duplex = _open(channel)
        async with asyncio.timeout(30):
            writing = asyncio.create_task(_write_to_the_end(duplex))
            assert await _read_to_the_end(duplex) <= 3
            await writing


async def test_cancelled_call_has_ended(ending: _Ending, channel: grpc.aio.Channel) -> None:
    ending.answer_count = 1
    duplex = _open(channel)
    reading = asyncio.create_task(duplex.read())
    await asyncio.sleep(0)
    duplex.cancel()
    with pytest.raises(headway.HeadwayError) as caught:
        await reading
    assert caught.value.code is grpc.StatusCode.CANCELLED
    assert not await duplex.write(ProduceRequest())
