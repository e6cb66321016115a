"""Connects: the address, the channel, and what every call gets: a deadline, typed errors, and repeats where safe."""

import asyncio
import os
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from logging import DEBUG, WARNING, getLogger
from typing import Any, TypeVar

import grpc.aio
from google.protobuf.duration_pb2 import Duration

from headway.core import errors
from headway.core.error import HeadwayError, from_rpc_error
from headway.v1 import admin_service_pb2_grpc, queue_service_pb2_grpc
from headway.v1.message_pb2 import ON_DUPLICATE_KEEP

ADDRESS_VARIABLE, DEFAULT_TARGET = "HEADWAY_ADDRESS", "127.0.0.1:7420"

log = getLogger("headway")

_OPTIONS = (
    # The service allows pings every 10 s and more.
    *(("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 10_000)),
    *(("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 5_000)),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.service_config", '{"loadBalancingConfig": [{"round_robin": {}}]}'),
)
# Calls that do no harm when made twice: they only read, or name what they do. Never repeated: Close and Delete (the
# second fails by rule), Purge and Repair (the second's answer tells its own part only).
_READ = ("Check", "Describe", "GetServerInfo", "List", "ListDead", "ListLeased", "Peek")
_SAFE = (*_READ, "Ack", "Create", "Delay", "Extend", "Get", "Pause", "Put", "Resume", "Update", "Withdraw")
# What a repeat may fail with that also tells what became of the tries before it. Others do not: they are said before
# that is looked at, as QUEUE_CLOSED is before the ids of a Put.
_TELLING = (errors.AlreadyExists, errors.InvalidArgument, errors.NotFound, errors.QueueDrained, errors.QueuePaused)

# What ends something that was served when a token expires, or a grant changes; the token of now may have it go on.
OF_CALLERS = (errors.PermissionDenied, errors.Unauthenticated)

_Response = TypeVar("_Response")
_Rpc = Callable[..., Awaitable[_Response]]  # a call of the generated stubs that is answered once


@dataclass(eq=False, repr=False)
class Connection(AbstractAsyncContextManager["Connection"]):
    """One channel and its stubs, opened in the event loop that makes the first call; calls go round the addresses.

    target: "host:port", several of them (IP addresses, not by TLS) with commas between, or any gRPC target; default the
    environment's HEADWAY_ADDRESS, else 127.0.0.1:7420.
    credentials: TLS; default plain text. metadata: sent with every call.
    call_timeout: how long a call may take beyond the `wait` it asks for.
    """

    target: str = ""
    credentials: grpc.ChannelCredentials | None = None
    metadata: Sequence[tuple[str, str]] = ()
    call_timeout: timedelta = timedelta(seconds=10)

    def __post_init__(self) -> None:
        self.call_seconds, self.is_closed = self.call_timeout.total_seconds(), False
        told = (self.target or os.environ.get(ADDRESS_VARIABLE, "")).split(",")
        self.target = ",".join(filter(None, map(str.strip, told))) or DEFAULT_TARGET
        if "," in self.target and not self.target.startswith(("ipv4:", "ipv6:")):
            self.target = ("ipv6:" if self.target.startswith("[") else "ipv4:") + self.target

    @cached_property
    def channel(self) -> grpc.aio.Channel:
        """The channel, for whatever else gRPC can do; what needs a stub of its own makes it before the close."""
        if self.credentials is None:
            return grpc.aio.insecure_channel(self.target, options=_OPTIONS)
        return grpc.aio.secure_channel(self.target, self.credentials, options=_OPTIONS)

    @cached_property
    def queues(self) -> "queue_service_pb2_grpc.QueueServiceAsyncStub":
        """The calls of producers, workers and watchers, as generated; make them by `call` and `stream`."""
        return queue_service_pb2_grpc.QueueServiceStub(self.channel)

    @cached_property
    def admin(self) -> "admin_service_pb2_grpc.AdminServiceAsyncStub":
        """The calls of operators, likewise."""
        return admin_service_pb2_grpc.AdminServiceStub(self.channel)

    async def call(
        self, rpc: _Rpc[_Response], request: Any, *, timeout: float = 0.0, on_lost: Callable[[], object] | None = None
    ) -> _Response:
        """Makes a call, and makes it again while it fails in passing and that does no harm: five tries at most, within
        `call_timeout` plus the `wait` that the request asks for; or as many as `timeout` seconds have room for, unless
        that is 0.

        What waits, and is refused for who calls, is made once more with the token of now: the last may have expired.
        What names its effect is repeated whatever became of it, `on_lost` being called first: a Put whose messages all
        carry ids (it then says KEEP in place of REJECT), a Get with an `attempt_id`, and what only reads or settles. A
        Put or Get without is repeated only if nothing happened, and what ends or empties a queue never. Changes the
        request. Raises HeadwayError: that of the last try, or of one whose outcome is unknown if no later one told what
        became of it; ClientClosed if the connection is. Cancelling it cancels the call.
        """
        name, clock = type(request).__name__.removesuffix("Request"), asyncio.get_running_loop().time
        wait = request.wait.ToTimedelta().total_seconds() if hasattr(request, "wait") else 0.0
        waited_at = clock() + max(0.0, wait)
        deadline = clock() + timeout if timeout else waited_at + self.call_seconds
        # What its sender named, a Put by its messages' ids, is done once however often it is made.
        names = (getattr(request, "attempt_id", name), *(m.id for m in getattr(request, "messages", ())))
        is_named = name in _SAFE and all(names)
        failures, lost = 0, None
        while True:
            # What may be made again gets half of the time, so that an answer that never comes leaves some for that.
            until = min(deadline, max(clock(), waited_at) + self.call_seconds / 2) if is_named else deadline
            try:
                return await rpc(request, timeout=until - clock(), metadata=self.metadata)
            except grpc.aio.AioRpcError as raised:
                error, failures = from_rpc_error(raised), failures + 1
                pause = backoff_seconds(failures, error.retry_after)
                lost = error if error.is_outcome_unknown else lost
                if error.is_outcome_unknown and on_lost is not None:
                    on_lost()
                is_safe = is_named or (name in _SAFE and not error.is_outcome_unknown)
                is_renewed = wait > 0.0 and failures == 1 and isinstance(error, OF_CALLERS)
                is_away = error.is_outcome_unknown or error.code is grpc.StatusCode.UNAVAILABLE or is_renewed
                if not (is_away and is_safe) or (failures == 5 and not timeout) or clock() + pause >= deadline:
                    raise (error if name in _READ or isinstance(error, _TELLING) else lost or error) from raised
            except (asyncio.CancelledError, grpc.aio.UsageError) as ended:
                raise not_by_the_service(ended) from None
            await asyncio.sleep(pause)
            if wait > 0.0:
                request.wait.CopyFrom(span(timedelta(seconds=max(0.0, waited_at - clock()))))
            if lost is not None and getattr(request, "on_duplicate", ON_DUPLICATE_KEEP) < ON_DUPLICATE_KEEP:
                request.on_duplicate = ON_DUPLICATE_KEEP

    async def stream(self, rpc: Any, request: Any, *, first_within: float | None = None) -> AsyncGenerator[Any, None]:
        """Yields the answers of one call until its end; closing the generator cancels the call.

        It has no deadline, for nobody knows how long the work takes: the channel's pings find out if the other side is
        gone. But the first answer may be awaited for `first_within` seconds at most. Raises HeadwayError.
        """
        try:
            async with AsyncExitStack() as ending, asyncio.timeout(first_within) as patience:
                call = rpc(request, metadata=self.metadata)
                ending.callback(call.cancel)
                async for response in call:
                    patience.reschedule(None)
                    yield response
        except TimeoutError as raised:
            raise (errors.DeadlineExceeded("no first answer came in time") if patience.expired() else raised) from None
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        except (asyncio.CancelledError, grpc.aio.UsageError) as ended:
            raise not_by_the_service(ended) from None

    async def close(self) -> None:
        """Ends the channel for good: calls that are under way, and all that are made later, fail with ClientClosed; the
        service takes back what they leased."""
        self.is_closed, *_ = True, self.queues, self.admin  # gRPC crashes where a closed channel is given a stub
        await self.channel.close()

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def not_by_the_service(ended: BaseException) -> BaseException:
    """Why a call ended over this: its task was cancelled, or else the connection was closed."""
    is_own = isinstance(ended, asyncio.CancelledError) and (task := asyncio.current_task()) and task.cancelling()
    return ended if is_own else errors.ClientClosed("the connection was closed")


def span(given: timedelta | None) -> Duration | None:
    """The span, rounded up to whole milliseconds; a negative one as it is, for the service to refuse."""
    wire = Duration()
    if given is not None:
        wire.FromTimedelta(given if given < timedelta(0) else given + -given % timedelta(milliseconds=1))
    return None if given is None else wire


def backoff_seconds(failures: int, retry_after: timedelta | None = None) -> float:
    """The wait after the n-th failure in a row: doubling from 0.1 s to 5 s, with jitter, never before `retry_after`."""
    longest = min(5.0, 0.05 * 2.0 ** min(failures, 16))
    return max(longest * random.uniform(0.5, 1.0), retry_after.total_seconds() if retry_after else 0.0)


def pause_seconds(queue_name: str, failures: int, error: HeadwayError) -> float:
    """The wait after the n-th failure in a row of what is tried until it works; the first one is told in the log."""
    log.log(WARNING if failures == 1 else DEBUG, "queue %r: %s; trying again until it works", queue_name, error)
    return backoff_seconds(failures, error.retry_after)
