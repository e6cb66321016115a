"""The client: one connection to the service, and the queues seen through it."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address
from types import TracebackType
from typing import Self
from urllib.parse import unquote

import grpc

from headway._lease import Lease
from headway._queue import Queue
from headway._spans import exact
from headway._tokens import Token, WithToken
from headway.core.connecting import Connection
from headway.core.errors import NotImplementedByService
from headway.v1 import admin_service_pb2 as admin_pb
from headway.v1 import queue_service_pb2 as pb
from headway.v1.queue_pb2 import Queue as QueueState

_CALL_TIMEOUT = timedelta(seconds=10)
_PAGE_SIZE = 100
# What gRPC takes lists of, by the scheme of the target.
_LISTS: dict[str, tuple[re.Pattern[str], Callable[[str], object]]] = {
    "ipv4": (re.compile(r"(.+):\d+"), IPv4Address),
    "ipv6": (re.compile(r"\[(.+)\]:\d+"), IPv6Address),
}
# Used if the service does not tell its limits: small enough for any sensible one.
_CAUTIOUS_LIMITS = admin_pb.Limits(max_batch_messages=100, max_request_bytes=1024 * 1024)


def connect(
    target: str | None = None,
    *,
    credentials: grpc.ChannelCredentials | None = None,
    root_certificates: bytes | None = None,
    token: Token | None = None,
    metadata: Sequence[tuple[str, str]] = (),
    call_timeout: timedelta = _CALL_TIMEOUT,
) -> "Client":
    """A client of the service at `target`: "host:port" or any gRPC target. Calls go round its addresses.

    target: default the environment's HEADWAY_ADDRESS, else 127.0.0.1:7420. Several services: one DNS name for all of
    them (`dns:///headway:7420`), or their IP addresses with commas between them ("10.0.0.1:7420,10.0.0.2:7420", or
    "[fd00::1]:7420,[fd00::2]:7420"). By TLS only the one name will do: gRPC looks for the whole list in each
    certificate.
    credentials: TLS, as gRPC makes it (`grpc.ssl_channel_credentials`); default plain text.
    root_certificates: TLS that trusts these authorities (PEM). One of the two, not both.
    token: a bearer token, or a function that gives one: it is called for each call, so it must be quick.
    metadata: sent with every call.
    call_timeout: how long a call may take beyond the `wait` it asks for.

    Connects with the first call and not before. Use it as `async with connect() as client:`, or close it. Raises
    ValueError if the target is a list of what gRPC takes no lists of, or for a token with a character that is not
    printable ASCII; calls and all that lasts do if a function gives such a one.
    """
    exact(call_timeout)  # refuses what is not a timedelta
    if root_certificates is not None:
        if credentials is not None:
            raise ValueError("give credentials or root_certificates, not both")
        credentials = grpc.ssl_channel_credentials(root_certificates)
    if token is not None:
        metadata = WithToken(metadata, token)
    connection = Connection(target or "", credentials=credentials, metadata=metadata, call_timeout=call_timeout)
    _refuse_names(connection.target)
    return Client(connection)


def _refuse_names(target: str) -> None:
    """Of a list with anything but IP addresses of one kind gRPC would fail each call, with UNKNOWN."""
    scheme, _, told = target.partition(":")
    if "," not in told or scheme not in _LISTS:
        return
    form, kind = _LISTS[scheme]
    for address in unquote(told).lstrip("/").split(","):  # as gRPC reads them
        found = form.fullmatch(address)
        try:
            kind(found[1] if found else "")
        except ValueError:
            raise ValueError(
                f"{address!r} cannot stand among several addresses: these are IP addresses with ports, all IPv4 or all"
                " IPv6 in brackets; or else give one DNS name that stands for all (dns:///NAME:PORT)"
            ) from None


class Client:
    """A connection to the service. Belongs to the event loop that makes its first call; safe for many tasks."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._limits: admin_pb.Limits | None = None
        self._left_behind: set[asyncio.Task[None]] = set()
        self.held: set[Lease] = set()  # by calls, by blocks and handlers that go on: no stream's end gives them back

    def queue(self, name: str) -> Queue:
        """A handle on the queue of this name; calls nothing, and the queue need not exist."""
        return Queue(self, name)

    async def list_queues(self, prefix: str = "") -> AsyncIterator[QueueState]:
        """Yields the queues whose names begin with `prefix`, in byte order, page by page."""
        page_token = ""
        while True:
            request = pb.ListRequest(prefix=prefix, page_size=_PAGE_SIZE, page_token=page_token)
            response: pb.ListResponse = await self.connection.call(self.connection.queues.List, request)
            for queue in response.queues:
                yield queue
            page_token = response.next_page_token
            if not page_token:
                return

    async def server_info(self) -> admin_pb.GetServerInfoResponse:
        """Version, limits and store of the service process that answers."""
        return await self.connection.call(self.connection.admin.GetServerInfo, admin_pb.GetServerInfoRequest())

    async def limits(self) -> admin_pb.Limits:
        """What the service accepts, asked once; cautious guesses if this version of it does not tell."""
        if self._limits is None:
            try:
                told = (await self.server_info()).limits
            except NotImplementedByService:
                told = _CAUTIOUS_LIMITS
            self._limits = admin_pb.Limits()
            self._limits.CopyFrom(told)
            if not told.max_batch_messages:
                self._limits.max_batch_messages = _CAUTIOUS_LIMITS.max_batch_messages
            if not told.max_request_bytes:
                self._limits.max_request_bytes = _CAUTIOUS_LIMITS.max_request_bytes
        return self._limits

    async def longest_wait(self, wait: timedelta) -> timedelta:
        """That wait, or what the service lets one call wait if that is shorter."""
        limits = await self.limits()
        return min(wait, limits.max_wait.ToTimedelta()) if limits.HasField("max_wait") else wait

    async def longest_lease(self, lease: timedelta) -> timedelta:
        """That lease, or what the service lets one last if that is shorter."""
        limits = await self.limits()
        return min(lease, limits.max_lease.ToTimedelta()) if limits.HasField("max_lease") else lease

    async def close(self) -> None:
        """Ends the connection: calls that are under way or made later fail with ClientClosed, and so do workers and all
        that lasts; what they hold is given back, which takes 5 s at most. What a Get brings just then lapses by
        itself. As a block it can be used once more.
        """
        for task in self._left_behind:
            task.cancel()
        if self._left_behind:
            await asyncio.wait(self._left_behind)
        held = list(self.held)
        await self.connection.close()
        left = [lease for lease in held if not lease.is_settled]
        if (
            left
        ):  # by a connection of its own: to this one's Gets, which would wait until it closes, they would come back
            async with replace(self.connection) as last:
                await asyncio.gather(*(lease.give_up(last) for lease in left))

    async def leave_behind(self, work: Coroutine[None, None, None]) -> None:
        """Lets something go on that nobody waits for, until it ends or the client is closed."""
        self.end_with(asyncio.create_task(work))
        await asyncio.sleep(0)  # it begins, so that it cleans up behind itself whenever it is cancelled

    def end_with(self, task: asyncio.Task[None]) -> None:
        """Cancels it when the client is closed, if it goes on until then: whoever owns it may have been forgotten."""
        self._left_behind.add(task)
        task.add_done_callback(self._left_behind.discard)

    async def __aenter__(self) -> Self:
        if self.connection.is_closed:
            for part in ("channel", "queues", "admin"):
                vars(self.connection).pop(part, None)  # the next call makes it anew
            self.connection.is_closed = False
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
