"""The servers that keep the queues: one, the primary that Sentinels name, or the primaries of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from headwayd.domain.errors import NotDurable, StoreUnavailable
from headwayd.store.address import Host, Kind, StoreAddress
from headwayd.store.cluster import Cluster
from headwayd.store.connections import ConnectionSource
from headwayd.store.link import Link, ScriptOrder
from headwayd.store.sentinels import Return, SentinelSource, SwitchListener, sentinel_options

# What a call fails with that found no primary: nothing happened.
_IS_AWAY = frozenset({"REFUSED", "SILENT", "READONLY"})
# Between the tries of one call.
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.1


class Servers(Protocol):
    """Where scripts go. `on_other` is told when a server that takes writes may be another one than before, and that
    before anything is sent to it; `on_move` when they only keep other queues. Calls that write fail with Unlooked while
    `may_write` is not true of the link to their server."""

    is_cluster: bool
    on_other: Callable[[], None]
    on_move: Callable[[], None]
    may_write: Callable[[Link], bool]

    @property
    def links(self) -> Sequence[Link]:
        """One to each server that takes writes, as far as they are known."""

    @property
    def sources(self) -> Mapping[Host | None, ConnectionSource]:
        """The same servers, to be heard."""

    def home(self, base: bytes) -> Host | None:
        """Which of `sources` has this base key; None also if that is not known."""

    async def start(self, *, wait_s: float) -> None:
        """Finds them; goes on trying after `wait_s`."""

    async def close(self) -> None:
        """Drops all connections."""

    async def call(self, order: ScriptOrder, *, budget_s: float) -> list[Any]:
        """As `Link.call`, of the server that has the key."""

    async def returns(self, error: StoreUnavailable, *, until: float) -> bool:
        """Whether what failed with this, and did nothing, may be tried again now; waits for that until then, by the
        loop's clock."""


class OneServer:
    """The server that a URL names."""

    is_cluster = False

    def __init__(
        self,
        source: ConnectionSource,
        *,
        call_timeout_s: float,
        min_replicas: int,
        on_doubt: Callable[[], None] | None = None,
    ) -> None:
        self._source = source
        self._link = Link(
            source,
            call_timeout_s=call_timeout_s,
            min_replicas=min_replicas,
            on_doubt=on_doubt,
            may_write=lambda link: self.may_write(link),  # noqa: PLW0108 - it is set later
        )
        self.call = self._link.call
        self.on_other: Callable[[], None] = lambda: None
        self.on_move: Callable[[], None] = lambda: None
        self.may_write: Callable[[Link], bool] = lambda _: True

    @property
    def links(self) -> Sequence[Link]:
        """The one."""
        return (self._link,)

    @property
    def sources(self) -> Mapping[Host | None, ConnectionSource]:
        """The one, under no name."""
        return {None: self._source}

    def home(self, base: bytes) -> Host | None:  # noqa: ARG002 - the same for all
        """No name."""
        return None

    async def returns(self, error: StoreUnavailable, *, until: float) -> bool:  # noqa: ARG002 - it is not waited for
        """The caller is told."""
        return False

    async def start(self, *, wait_s: float) -> None:
        """Nothing is to be found."""

    async def close(self) -> None:
        """Waits for calls under way, then drops all connections."""
        await self._link.close()


class SentinelServer(OneServer):
    """The primary that Sentinels name. After a switch, or a lost answer, every connection is made anew.

    While there is none, calls that did nothing wait for it within their budgets: a failover takes longer than callers
    go on trying, and whoever waits here goes on the moment it is over.
    """

    def __init__(
        self,
        address: StoreAddress,
        *,
        call_timeout_s: float,
        min_replicas: int,
        password_file: Path | None,
        sentinel_password_file: Path | None,
    ) -> None:
        sentinels = sentinel_options(address, sentinel_password_file)
        self._named = SentinelSource(address, sentinels, call_timeout_s=call_timeout_s, password_file=password_file)
        super().__init__(
            self._named,
            call_timeout_s=call_timeout_s,
            min_replicas=min_replicas,
            on_doubt=self._drop_connections,
        )
        self._named.on_other = self._on_switch
        self.call = self._call_or_wait
        self._return = Return(self._named)
        self._switches = SwitchListener(address, sentinels, call_timeout_s=call_timeout_s, on_switch=self._on_switch)

    async def _call_or_wait(self, order: ScriptOrder, *, budget_s: float) -> list[Any]:
        loop = asyncio.get_running_loop()
        until = loop.time() + budget_s
        pause_s = _SHORTEST_PAUSE_S
        while True:
            left_s = until - loop.time()
            try:
                return await self._link.call(order, budget_s=left_s)
            except NotDurable:
                raise
            except StoreUnavailable as error:
                if not await self.returns(error, until=until - pause_s):
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def returns(self, error: StoreUnavailable, *, until: float) -> bool:
        """Whether there is a primary again, if there was none."""
        if error.metadata.get("cause") not in _IS_AWAY:
            return False
        return await self._return.within(until - asyncio.get_running_loop().time())

    def _drop_connections(self) -> None:
        self._link.drop_connections()

    def _on_switch(self) -> None:
        self._drop_connections()
        self._return.look_again()
        self.on_other()

    async def start(self, *, wait_s: float) -> None:  # noqa: ARG002 - what there is to find is found at each connection
        """Begins to listen to the Sentinels."""
        self._switches.start()

    async def close(self) -> None:
        """Drops the connections to Sentinels, too."""
        await self._switches.close()
        await super().close()
        await self._return.close()
        await self._named.close()


def servers_at(
    address: StoreAddress,
    *,
    call_timeout_s: float,
    min_replicas: int = 0,
    password_file: Path | None = None,
    sentinel_password_file: Path | None = None,
) -> Servers:
    """The servers at this address. `min_replicas` have what is written before it is answered; the passwords of files
    replace the URL's."""
    if address.kind is Kind.CLUSTER:
        return Cluster(address, call_timeout_s=call_timeout_s, min_replicas=min_replicas, password_file=password_file)
    if address.kind is Kind.SENTINEL:
        return SentinelServer(
            address,
            call_timeout_s=call_timeout_s,
            min_replicas=min_replicas,
            password_file=password_file,
            sentinel_password_file=sentinel_password_file,
        )
    source = ConnectionSource(address, call_timeout_s=call_timeout_s, password_file=password_file)
    return OneServer(source, call_timeout_s=call_timeout_s, min_replicas=min_replicas)
