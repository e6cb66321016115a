"""Finds the primary that Redis Sentinels know under a name, and hears when it is another one.

Sentinels are asked for each connection. What they say may be old for a moment, so the server found is asked what it is
before it is used. A switch is announced by every Sentinel: one of them is listened to, and another if that one is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog
from redis import exceptions as redis_errors
from redis.asyncio.connection import AbstractConnection, Connection
from redis.asyncio.sentinel import Sentinel

from headwayd.store.address import StoreAddress
from headwayd.store.connections import ConnectionSource, ask, network_options, send

_SWITCH = b"+switch-master"
_PRIMARY = b"master"
# One Sentinel that is silent must not cost a whole call.
_ANSWER_S = 0.3
_PAUSE_S = 0.2
_PING_EVERY_S = 2.0
_TROUBLE = (redis_errors.RedisError, OSError, TimeoutError)
log = structlog.get_logger(__name__)


def _sentinel_options(address: StoreAddress) -> dict[str, Any]:
    shared = {name: value for name, value in address.options.items() if name.startswith("ssl_")}
    return dict(address.sentinel_options) | shared


class SentinelSource(ConnectionSource):
    """Opens connections to the primary of the moment."""

    def __init__(self, address: StoreAddress, *, call_timeout_s: float, password_file: Path | None = None) -> None:
        super().__init__(address, call_timeout_s=call_timeout_s, password_file=password_file)
        kwargs = network_options(min(_ANSWER_S, call_timeout_s)) | _sentinel_options(address)
        if address.is_tls:
            kwargs["ssl"] = True
        self._service = address.service
        self._sentinels: Any = Sentinel(address.hosts, sentinel_kwargs=kwargs)  # type: ignore[no-untyped-call]

    async def open(self, *, timeout_s: float | None = None) -> AbstractConnection:
        """A connected connection to a server that says that it is the primary. Raises ConnectionError if no Sentinel
        knows one that lives; ReadOnlyError if the one they know says otherwise."""
        host, port = await self._sentinels.discover_master(self._service)
        connection = await self._open(self._options | {"host": host, "port": port}, timeout_s)
        try:
            role = (await ask(connection, "ROLE"))[0]
            if role != _PRIMARY:
                raise redis_errors.ReadOnlyError("the server that the Sentinels name is no primary yet")
        except BaseException:
            with contextlib.suppress(*_TROUBLE):
                await connection.disconnect(nowait=True)
            raise
        return connection

    async def close(self) -> None:
        """Drops the connections to the Sentinels."""
        await self._sentinels.aclose()


class SwitchListener:
    """Tells `on_switch` that the primary is another one now: at once when a Sentinel says so, and after every time in
    which none was heard. Runs from `start` to `close`."""

    def __init__(self, address: StoreAddress, *, call_timeout_s: float, on_switch: Callable[[], None]) -> None:
        self._hosts = list(address.hosts)
        self._service = address.service.encode()
        self._class: type[AbstractConnection] = address.options.get("connection_class", Connection)
        self._options = network_options(call_timeout_s) | _sentinel_options(address)
        self._call_timeout_s = call_timeout_s
        self._on_switch = on_switch
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to listen."""
        random.shuffle(self._hosts)
        self._task = asyncio.create_task(self._keep_listening(), name="sentinels")

    async def close(self) -> None:
        """Stops listening."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _keep_listening(self) -> None:
        is_first = True
        while True:
            try:
                await self._listen(is_first=is_first)
            except _TROUBLE as error:
                log.debug("sentinel.lost", host=self._hosts[0][0], port=self._hosts[0][1], error=type(error).__name__)
            is_first = False
            self._hosts.append(self._hosts.pop(0))
            await asyncio.sleep(_PAUSE_S * (0.5 + random.random()))

    async def _listen(self, *, is_first: bool) -> None:
        host, port = self._hosts[0]
        connection = self._class(**(self._options | {"host": host, "port": port, "socket_timeout": None}))
        try:
            async with asyncio.timeout(self._call_timeout_s):
                await connection.connect()  # type: ignore[no-untyped-call] # redis-py leaves it so
                await ask(connection, "SUBSCRIBE", _SWITCH)
            if not is_first:
                self._on_switch()
            while True:
                await self._hear(connection)
        finally:
            with contextlib.suppress(*_TROUBLE):
                await connection.disconnect(nowait=True)

    async def _hear(self, connection: AbstractConnection) -> None:
        """One message, or a sign of life that was asked for after a while of silence."""
        reading = asyncio.ensure_future(connection.read_response())
        try:
            done, _ = await asyncio.wait({reading}, timeout=_PING_EVERY_S)
            if not done:
                await send(connection, [("PING",)])
                done, _ = await asyncio.wait({reading}, timeout=self._call_timeout_s)
            if not done:
                raise redis_errors.TimeoutError("the Sentinel is silent")
            message = reading.result()
        finally:
            if not reading.done():
                reading.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await reading
        if isinstance(message, list) and message[:2] == [b"message", _SWITCH]:
            service = message[2].split(b" ", 1)[0]
            if service == self._service:
                log.info("the store has another primary", was=message[2].decode("utf-8", "replace"))
                self._on_switch()
