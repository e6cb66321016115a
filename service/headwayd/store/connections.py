"""Opens connections to the store: the one place that says how redis-py is to behave.

Its own retries are off, because it re-sends scripts; the protocol is RESP2, because with RESP3 a stray reply can
reach the next call; every wait on the network is bounded. A password in a file is read for each connection, so that it
may be changed while the service runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, cast

from redis import exceptions as redis_errors
from redis.asyncio.connection import AbstractConnection, Connection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from headwayd.store.address import Host, StoreAddress
from headwayd.store.packing import pack

CONNECT_TIMEOUT_S = 1.0
# How many answers a connection needs at most until it is there: to be connected, and to password, name, and database.
# Each has a timeout of its own.
ANSWERS_TO_OPEN = 4
RUN = "run_id"  # the field of INFO that no two processes of servers have in common


def network_options(call_timeout_s: float) -> dict[str, Any]:
    """How redis-py is to behave on any connection of ours."""
    return {
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "socket_connect_timeout": min(CONNECT_TIMEOUT_S, call_timeout_s),
        "socket_timeout": call_timeout_s,
        "health_check_interval": 0,
        "client_name": "headwayd",
        "driver_info": None,  # Redis knows it from 7.2 on, and it needs a permission
    }


@contextmanager
def resets_as_connection_errors() -> Iterator[None]:
    """Writing on a connection that was reset is a RuntimeError for uvloop; redis-py does not know that."""
    try:
        yield
    except RuntimeError as error:
        raise redis_errors.ConnectionError("the connection was reset") from error


class ConnectionSource:
    """Opens connections to one server: the one that the address names, or, of a cluster, the node `at`."""

    def __init__(
        self, address: StoreAddress, *, call_timeout_s: float, password_file: Path | None = None, at: Host | None = None
    ) -> None:
        options = dict(address.options)
        self._class: type[AbstractConnection] = options.pop("connection_class", Connection)
        self._options = options | network_options(call_timeout_s)
        if at is not None:
            self._options |= {"host": at[0], "port": at[1]}
        self._password_file = password_file

    async def open(self) -> AbstractConnection:
        """A connected connection."""
        return await self._open(dict(self._options))

    async def _open(self, options: dict[str, Any]) -> AbstractConnection:
        if self._password_file is not None:
            options["password"] = read_password(self._password_file)
        connection = self._class(**options)
        with resets_as_connection_errors():
            await cast(Any, connection).connect()  # redis-py leaves it untyped
        return connection


def read_password(file: Path) -> str:
    """What the file holds, without the line's end. Raises AuthenticationError: to callers it is as if the store did not
    accept the password."""
    try:
        return file.read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise redis_errors.AuthenticationError(f"cannot read {file}") from error


async def send(connection: AbstractConnection, commands: Sequence[Sequence[str | bytes | int]]) -> None:
    """Sends commands as one piece."""
    with resets_as_connection_errors():
        await connection.send_packed_command([*chain.from_iterable(map(pack, commands))], check_health=False)


async def ask(connection: AbstractConnection, *command: str | bytes | int) -> Any:
    """One command, one reply."""
    await send(connection, [command])
    return await connection.read_response()


def info_of(text: bytes) -> dict[str, str]:
    """The fields of an answer to INFO."""
    pairs = (line.partition(":") for line in text.decode("utf-8", "replace").splitlines() if ":" in line)
    return {key: value for key, _, value in pairs}


def is_replica(answer: Any) -> bool:
    """Whether that is what a server says of itself that was asked for INFO replication, and may be."""
    return isinstance(answer, bytes) and info_of(answer).get("role") == "slave"


async def run_of(connection: AbstractConnection) -> str:
    """Which process of a server's it leads to; "" where that may not be asked."""
    try:
        return info_of(await ask(connection, "INFO", "server")).get(RUN, "")
    except redis_errors.ResponseError:
        return ""
