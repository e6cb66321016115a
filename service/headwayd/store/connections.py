"""Opens connections to the store: the one place that says how redis-py is to behave.

Its own retries are off, because it re-sends scripts; the protocol is RESP2, because with RESP3 a stray reply can
reach the next call; every wait on the network is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from hiredis import pack_command
from redis import exceptions as redis_errors
from redis.asyncio.connection import AbstractConnection, Connection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

CONNECT_TIMEOUT_S = 1.0


@contextmanager
def _resets_as_connection_errors() -> Iterator[None]:
    """Writing on a connection that was reset is a RuntimeError for uvloop; redis-py does not know that."""
    try:
        yield
    except RuntimeError as error:
        raise redis_errors.ConnectionError("the connection was reset") from error


class ConnectionSource:
    """Opens connections to one store, as its URL says."""

    def __init__(self, url: str, *, call_timeout_s: float) -> None:
        options: dict[str, Any] = dict(parse_url(url))
        self._class: type[AbstractConnection] = options.pop("connection_class", Connection)
        self._options = options | {
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "retry_on_error": [],
            "socket_connect_timeout": min(CONNECT_TIMEOUT_S, call_timeout_s),
            "socket_timeout": call_timeout_s,
            "health_check_interval": 0,
            "client_name": "headwayd",
        }
        self.database = int(options.get("db") or 0)

    async def open(self, *, timeout_s: float | None = None) -> AbstractConnection:
        """A connected connection. `timeout_s` replaces the time that a reply may take; 0 means for ever
        (subscriptions)."""
        options = dict(self._options)
        if timeout_s is not None:
            options["socket_timeout"] = timeout_s or None
        connection = self._class(**options)
        with _resets_as_connection_errors():
            await cast(Any, connection).connect()  # redis-py leaves it untyped
        return connection


async def is_fit(connection: AbstractConnection) -> bool:
    """Whether a connection that lay idle can be used: it stands, and nothing is left over to read. redis-py looks for
    left-over bytes and an orderly end, not for a reset."""
    writer = connection._writer  # noqa: SLF001 - nothing public tells
    return writer is not None and not writer.is_closing() and not await connection.can_read()


async def send(connection: AbstractConnection, commands: Sequence[Sequence[str | bytes | int]]) -> None:
    """Sends commands as one piece. Packed by hiredis: redis-py's own packing takes six times as long, and of a Put more
    than its script."""
    packed = [pack_command(cast(Any, tuple(command))) for command in commands]  # its stubs know only tuples of one
    with _resets_as_connection_errors():
        await connection.send_packed_command(packed, check_health=False)


async def ask(connection: AbstractConnection, *command: str | bytes | int) -> Any:
    """One command, one reply."""
    await send(connection, [command])
    return await connection.read_response()
