"""Finds the primary that Redis Sentinels know under a name, hears when it is another one, and waits for one.

They learn of a switch one after another, up to two seconds apart. So all are asked for each connection, and the one
that knows the latest is believed; the server found is asked what it is before it is used. All are listened to, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from redis import exceptions as redis_errors
from redis.asyncio.connection import AbstractConnection, Connection
from redis.asyncio.sentinel import Sentinel
from redis.credentials import CredentialProvider

from headwayd.domain.kept import end, kept
from headwayd.store.address import Host, StoreAddress
from headwayd.store.connections import (
    ConnectionSource,
    ask,
    network_options,
    read_password,
    resets_as_connection_errors,
    send,
)

_SWITCH = b"+switch-master"
_PRIMARY = b"master"
# One Sentinel that is silent must not cost a whole call.
_ANSWER_S = 0.3
# How long the others are waited for when one has named a primary that it does not take for gone.
_OTHERS_S = 0.05
_PAUSE_S = 0.2
_LOOK_EVERY_S = 0.05
_PING_EVERY_S = 2.0
_TROUBLE = (redis_errors.RedisError, OSError, TimeoutError)
log = structlog.get_logger(__name__)


def sentinel_options(address: StoreAddress, password_file: Path | None = None) -> dict[str, Any]:
    """redis-py's for connections to Sentinels: TLS as for the servers, user and password of their own."""
    options = {name: value for name, value in address.options.items() if name.startswith("ssl_")}
    if password_file is None:
        return options | dict(address.sentinel_options)
    return options | {"credential_provider": _Passport(address.sentinel_options.get("username"), password_file)}


class _Passport(CredentialProvider):
    """Reads the password for each connection, so that it may be changed while the service runs."""

    def __init__(self, username: str | None, file: Path) -> None:
        self._username = username
        self._file = file

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """As redis-py asks for them."""
        password = read_password(self._file)
        return (password,) if self._username is None else (self._username, password)


class _Told(NamedTuple):
    """What one Sentinel says of the primary. `epoch` grows with every failover."""

    epoch: int
    primary: Host
    is_sound: bool


class SentinelSource(ConnectionSource):
    """Opens connections to the primary of the moment. `on_other` is told when that is another one than that of the
    connection before; nobody has to have heard of a switch."""

    def __init__(
        self,
        address: StoreAddress,
        sentinels: Mapping[str, Any],
        *,
        call_timeout_s: float,
        password_file: Path | None = None,
    ) -> None:
        super().__init__(address, call_timeout_s=call_timeout_s, password_file=password_file)
        kwargs = network_options(min(_ANSWER_S, call_timeout_s)) | dict(sentinels)
        if address.is_tls:
            kwargs["ssl"] = True
        self._service = address.service
        self.on_other: Callable[[], None] = lambda: None
        self._opened: Host | None = None  # the primary to which the last connection was opened
        self._sentinels: Any = Sentinel(address.hosts, sentinel_kwargs=kwargs)  # type: ignore[no-untyped-call]

    async def open(self) -> AbstractConnection:
        """A connected connection to a server that says that it is the primary. Raises ConnectionError if no Sentinel
        knows one that lives; ReadOnlyError if the one they know says otherwise."""
        host, port = await self._primary()
        connection = await self._open(self._options | {"host": host, "port": port})
        try:
            role = (await ask(connection, "ROLE"))[0]
            if role != _PRIMARY:
                raise redis_errors.ReadOnlyError("the server that the Sentinels name is no primary yet")
        except BaseException:
            with contextlib.suppress(*_TROUBLE):
                await connection.disconnect(nowait=True)
            raise
        before, self._opened = self._opened, (host, port)
        if before not in (None, self._opened):
            self.on_other()
        return connection

    async def _primary(self) -> tuple[str, int]:
        asked = [asyncio.ensure_future(self._ask(each)) for each in self._sentinels.sentinels]
        told: list[_Told] = []
        last: BaseException = redis_errors.ConnectionError("no Sentinel knows the primary")
        try:
            waiting = set(asked)
            while waiting:
                others_s = _OTHERS_S if any(one.is_sound for one in told) else None
                done, waiting = await asyncio.wait(waiting, timeout=others_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                for answer in done:
                    if (error := answer.exception()) is not None:
                        last = error
                    elif (one := answer.result()) is not None:
                        told.append(one)
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        if not told:
            raise last
        # That it is gone is the view of one, whose own way to it may be at fault. If it is, it will not answer.
        latest = max(told, key=lambda one: (one.epoch, one.is_sound))
        if not latest.is_sound:
            raise redis_errors.ConnectionError("the Sentinels take the primary for gone, and have named no other yet")
        return latest.primary

    async def _ask(self, sentinel: Any) -> _Told | None:
        with resets_as_connection_errors():
            state = (await sentinel.sentinel_masters()).get(self._service)
            # In a failover the first answer still has the old primary, and the flags are its; the second has the new.
            address = await sentinel.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", self._service)
        if state is None or address is None:
            return None
        primary = (address[0].decode(), int(address[1]))
        is_new = primary != (state["ip"], int(state["port"]))
        is_sound = is_new or self._sentinels.check_master_state(state, self._service)
        return _Told(epoch=int(state["config-epoch"]), primary=primary, is_sound=is_sound)

    async def close(self) -> None:
        """Drops the connections to the Sentinels."""
        await self._sentinels.aclose()


class Return:
    """The return of a primary: however many wait for it, one connection at a time is tried."""

    def __init__(self, source: SentinelSource) -> None:
        self._source = source
        self._looking: asyncio.Task[None] | None = None
        self._waiting_count = 0
        self._is_switched = asyncio.Event()

    async def within(self, seconds: float) -> bool:
        """Waits until there is a primary, for so long at most. False if there is none."""
        if self._looking is None or self._looking.done():
            self._looking = kept(self._look(), "primary")
        looking = self._looking
        self._waiting_count += 1
        try:
            await asyncio.wait({looking}, timeout=max(seconds, 0.0))
        finally:
            self._waiting_count -= 1
        return looking.done()

    def look_again(self) -> None:
        """The primary is another one: whoever is asked just now may be the wrong one, and silent."""
        self._is_switched.set()

    async def close(self) -> None:
        """Stops looking."""
        if self._looking is not None:
            await end([self._looking])

    async def _look(self) -> None:
        """Ends when there is one, or nobody waits any more."""
        while self._waiting_count:
            if await self._is_there():
                return
            await asyncio.sleep(_LOOK_EVERY_S * (0.5 + random.random()))

    async def _is_there(self) -> bool:
        self._is_switched.clear()
        opening = asyncio.create_task(self._source.open())
        switching = asyncio.create_task(self._is_switched.wait())
        try:
            await asyncio.wait({opening, switching}, return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                return False
            with contextlib.suppress(*_TROUBLE):
                await opening.result().disconnect(nowait=True)
                return True
            return False
        finally:
            opening.cancel()
            switching.cancel()
            await asyncio.gather(opening, switching, return_exceptions=True)


class SwitchListener:
    """Tells `on_switch` that the primary is another one now: as soon as one Sentinel says so, and after every time in
    which none was heard. Runs from `start` to `close`."""

    def __init__(
        self,
        address: StoreAddress,
        sentinels: Mapping[str, Any],
        *,
        call_timeout_s: float,
        on_switch: Callable[[], None],
    ) -> None:
        self._hosts = address.hosts
        self._service = address.service.encode()
        self._class: type[AbstractConnection] = address.options.get("connection_class", Connection)
        self._options = network_options(call_timeout_s) | dict(sentinels)
        self._call_timeout_s = call_timeout_s
        self._on_switch = on_switch
        self._heard = 0  # how many Sentinels
        self._was_deaf = False
        self._named: list[bytes] = []  # the primary that was announced last
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins to listen."""
        if not self._tasks:
            self._tasks = [kept(self._keep_listening(host), "sentinels") for host in self._hosts]

    async def close(self) -> None:
        """Stops listening."""
        await end(self._tasks)
        self._tasks = []

    async def _keep_listening(self, host: Host) -> None:
        while True:
            try:
                await self._listen(host)
            except _TROUBLE as error:
                log.debug("sentinel.lost", host=host[0], port=host[1], error=type(error).__name__)
            except Exception:  # loop guard: it will tell of the next switch, too
                log.exception("sentinel.lost", host=host[0], port=host[1])
            await asyncio.sleep(_PAUSE_S * (0.5 + random.random()))

    async def _listen(self, host: Host) -> None:
        where = {"host": host[0], "port": host[1], "socket_timeout": None}
        connection = self._class(**(self._options | where))
        try:
            async with asyncio.timeout(self._call_timeout_s):
                with resets_as_connection_errors():
                    await connection.connect()  # type: ignore[no-untyped-call] # redis-py leaves it so
                await ask(connection, "SUBSCRIBE", _SWITCH)
            self._heard += 1
            if self._was_deaf:
                self._was_deaf = False
                self._on_switch()
            try:
                while True:
                    await self._hear(connection)
            finally:
                self._heard -= 1
                self._was_deaf = self._heard == 0
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
                await asyncio.gather(reading, return_exceptions=True)
        if isinstance(message, list) and message[:2] == [b"message", _SWITCH]:
            service, *before, host, port = message[2].split(b" ")
            if service == self._service and self._named != [host, port]:
                self._named = [host, port]
                log.info("the store has another primary", was=b":".join(before).decode("utf-8", "replace"))
                self._on_switch()
