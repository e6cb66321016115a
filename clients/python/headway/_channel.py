"""Answers for the connection: its address, its channel options, and which calls gRPC itself may repeat."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Coroutine, Sequence
from datetime import timedelta
from typing import TypeVar

import grpc
import grpc.aio

from headway._duplex import Duplex
from headway._errors import DeadlineExceeded, HeadwayError, Unavailable, from_rpc_error
from headway._spans import exact
from headway.v1 import admin_service_pb2_grpc, queue_service_pb2_grpc

DEFAULT_TARGET = "127.0.0.1:7420"
ADDRESS_VARIABLE = "HEADWAY_ADDRESS"
MAX_RECEIVE_BYTES = 64 * 1024 * 1024

# Calls that gRPC may make again by itself: they do no harm when done twice, and their answer says the same. Get, Put,
# Ack, Delay, Extend and Withdraw are repeated by `_repeat`, which can tell the caller. Never repeated: Close and Delete
# (the second fails by rule), Purge and Repair (the second's answer tells its own part only), Redrive.
_REPEATABLE = {
    "headway.v1.QueueService": ("Create", "Describe", "List", "Update", "Peek"),
    "headway.v1.AdminService": ("Check", "GetServerInfo", "ListDead", "Pause", "Resume"),
}

_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


def resolve_target(target: str | None) -> str:
    """The address to call: the one given, else the environment's HEADWAY_ADDRESS, else 127.0.0.1:7420.

    Several, with commas between them, become a target of gRPC's own: it takes literal addresses of one family.
    """
    found = target or os.environ.get(ADDRESS_VARIABLE) or DEFAULT_TARGET
    if "," not in found or found.startswith(("ipv4:", "ipv6:")):
        return found
    return ("ipv6:" if found.startswith("[") else "ipv4:") + found


def service_config() -> str:
    """The gRPC service config: round robin over all addresses; what was not served is repeated where that is safe."""
    return json.dumps(
        {
            "loadBalancingConfig": [{"round_robin": {}}],
            "methodConfig": [
                {
                    "name": [
                        {"service": service, "method": method}
                        for service, methods in _REPEATABLE.items()
                        for method in methods
                    ],
                    "retryPolicy": {
                        "maxAttempts": 4,
                        "initialBackoff": "0.1s",
                        "maxBackoff": "2s",
                        "backoffMultiplier": 2,
                        # CANCELLED: by the service's side, as `_typed` tells.
                        "retryableStatusCodes": ["UNAVAILABLE", "CANCELLED"],
                    },
                }
            ],
        }
    )


def channel_options() -> list[tuple[str, int | str]]:
    """Options of every channel. The service allows pings every 10 s and more."""
    return [
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        ("grpc.max_send_message_length", -1),  # the service knows its limit and refuses with TOO_LARGE
        ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
        ("grpc.service_config", service_config()),
    ]


class Connection:
    """One channel and its stubs, opened in the event loop that makes the first call; every call gets a deadline."""

    def __init__(
        self,
        target: str | None,
        *,
        credentials: grpc.ChannelCredentials | None,
        metadata: Sequence[tuple[str, str]],
        call_timeout: timedelta,
    ) -> None:
        exact(call_timeout)  # refuses what is not a timedelta
        self.target = resolve_target(target)
        self.call_timeout = call_timeout
        self._credentials = credentials
        self._metadata = tuple(metadata)
        self._channel: grpc.aio.Channel | None = None
        self._left_behind: set[asyncio.Task[None]] = set()
        # The stubs' types for asyncio exist for type checkers only.
        self._queues: queue_service_pb2_grpc.QueueServiceAsyncStub | None = None
        self._admin: admin_service_pb2_grpc.AdminServiceAsyncStub | None = None

    @property
    def channel(self) -> grpc.aio.Channel:
        if self._channel is None:
            if self._credentials is None:
                self._channel = grpc.aio.insecure_channel(self.target, options=channel_options())
            else:
                self._channel = grpc.aio.secure_channel(self.target, self._credentials, options=channel_options())
        return self._channel

    @property
    def queues(self) -> "queue_service_pb2_grpc.QueueServiceAsyncStub":
        if self._queues is None:
            self._queues = queue_service_pb2_grpc.QueueServiceStub(self.channel)
        return self._queues

    @property
    def admin(self) -> "admin_service_pb2_grpc.AdminServiceAsyncStub":
        if self._admin is None:
            self._admin = admin_service_pb2_grpc.AdminServiceStub(self.channel)
        return self._admin

    async def call(
        self,
        rpc: "grpc.aio.UnaryUnaryMultiCallable[_Request, _Response]",
        request: _Request,
        *,
        wait: timedelta | None = None,
        timeout: float | None = None,
    ) -> _Response:
        """Makes one call and awaits its answer for `call_timeout` plus the `wait` that the request asks for, or for
        `timeout` seconds.

        Raises HeadwayError. Cancelling it cancels the call.
        """
        seconds = timeout
        if seconds is None:
            seconds = self.call_timeout.total_seconds() + max(0.0, wait.total_seconds() if wait else 0.0)
        try:
            response: _Response = await rpc(request, timeout=seconds, metadata=self._metadata or None)
        except grpc.aio.AioRpcError as error:
            raise self._typed(error) from error
        return response

    async def stream(
        self,
        rpc: "grpc.aio.UnaryStreamMultiCallable[_Request, _Response]",
        request: _Request,
        *,
        first_within: timedelta | None = None,
    ) -> AsyncGenerator[_Response, None]:
        """Yields the answers of one call until its end; closing the generator cancels the call.

        It has no deadline, for nobody knows how long the work takes: the channel's pings find out if the other side is
        gone. But the first answer may be asked for `first_within` a span. Raises HeadwayError.
        """
        call = rpc(request, metadata=self._metadata or None)
        answers = call.__aiter__()
        try:
            if first_within is not None:
                async with asyncio.timeout(first_within.total_seconds()):
                    first = await anext(answers, None)
                if first is None:
                    return
                yield first
            async for response in answers:
                yield response
        except TimeoutError:
            late = "the first answer of the stream did not come in time"
            raise DeadlineExceeded(late, code=grpc.StatusCode.DEADLINE_EXCEEDED) from None
        except grpc.aio.AioRpcError as error:
            raise self._typed(error) from error
        finally:
            call.cancel()

    def duplex(self, rpc: "grpc.aio.StreamStreamMultiCallable[_Request, _Response]") -> Duplex[_Request, _Response]:
        """Begins a call that streams both ways. It has no deadline: pings find out if the other side is gone."""
        return Duplex(rpc(metadata=self._metadata or None), self._typed)

    def _typed(self, error: grpc.aio.AioRpcError) -> HeadwayError:
        """The error of a call that nobody here cancelled, unless the client was closed: a service process that ends
        does so, without a word, to calls that it has not begun. Then it is as away as one that has gone."""
        typed = from_rpc_error(error)
        if typed.code is grpc.StatusCode.CANCELLED and not typed.reason and self._channel is not None:
            return Unavailable("the service cancelled the call", code=grpc.StatusCode.UNAVAILABLE)
        return typed

    async def leave_behind(self, work: Coroutine[None, None, None]) -> None:
        """Lets something go on that nobody waits for, until it ends or the connection does."""
        task = asyncio.create_task(work)
        self._left_behind.add(task)
        task.add_done_callback(self._left_behind.discard)
        await asyncio.sleep(0)  # it begins, so that it cleans up behind itself whenever it is cancelled

    async def close(self) -> None:
        """Ends the channel; calls that are under way are cancelled."""
        for task in self._left_behind:
            task.cancel()
        if self._left_behind:
            await asyncio.wait(self._left_behind)
        channel, self._channel, self._queues, self._admin = self._channel, None, None, None
        if channel is not None:
            await channel.close()
