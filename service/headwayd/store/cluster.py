"""A cluster's primaries: which of them has a queue, and how calls follow when slots move.

redis-py's client for clusters repeats and redirects by itself; here every call is ours, so of it only the slot of a
key and the errors of nodes are used. The map of slots is asked for every second, and at once when it seems to be old.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog
from redis.crc import key_slot

from headwayd.domain.errors import HeadwayError, StoreUnavailable
from headwayd.domain.kept import end, kept
from headwayd.store.address import Host, StoreAddress
from headwayd.store.connections import ANSWERS_TO_OPEN, ConnectionSource
from headwayd.store.link import Link, ScriptOrder
from headwayd.store.trouble import Moving, checked

_ASK_EVERY_S = 1.0
_ASK_AGAIN_S = 0.1
# Of a connection that is made for the map alone: whether transactions are permitted, and the map, come last.
_ANSWERS = ANSWERS_TO_OPEN + 2
# How long a doubt lasts: the nodes themselves learn of a failover later than the first call that fails.
_DOUBT_S = 2.0
# One that was away for a while tells of a past that it takes for the present, until it hears of the others, or of none.
# Where for so long nobody told anything later, the past is over: the cluster was made anew.
_PAST_S = 30.0
# A call whose slot is being moved is tried again after the first of these, then after longer ones up to the second.
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.05
log = structlog.get_logger(__name__)


class Cluster:
    """Fulfils `store.servers.Servers`. Runs from `start` to `close`."""

    is_cluster = True

    def __init__(
        self, address: StoreAddress, *, call_timeout_s: float, min_replicas: int, password_file: Path | None
    ) -> None:
        self._address = address
        self._call_timeout_s = call_timeout_s
        self._min_replicas = min_replicas
        self._password_file = password_file
        self._links: dict[Host, Link] = {}
        self._home_of: dict[int, Host] = {}
        self._rows: object = None  # the map as it was told last
        self._epoch = -1
        self._past_since: float | None = None  # when a node told of the past; None: later another one of the present
        self._is_doubted = asyncio.Event()
        self._is_known = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self.on_other: Callable[[], None] = lambda: None
        self.on_move: Callable[[], None] = lambda: None
        self.may_write: Callable[[Link], bool] = lambda _: True

    @property
    def links(self) -> Sequence[Link]:
        """One to each primary that has slots."""
        return list(self._links.values())

    @property
    def sources(self) -> Mapping[Host | None, ConnectionSource]:
        """The same primaries, to be heard."""
        return {host: link.source for host, link in self._links.items()}

    def home(self, base: bytes) -> Host | None:
        """The primary that has this base key, as far as is known."""
        return self._home_of.get(key_slot(base))

    async def start(self, *, wait_s: float) -> None:
        """Asks for the map of slots; goes on trying after `wait_s`."""
        if self._task is None:
            self._task = kept(self._keep_map(), "cluster")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._is_known.wait()

    async def close(self) -> None:
        """Waits for calls under way, then drops all connections."""
        if self._task is not None:
            await end([self._task])
            self._task = None
        await asyncio.gather(*(link.close() for link in self._links.values()), *self._closing)

    async def call(self, order: ScriptOrder, *, budget_s: float) -> list[Any]:
        """As `Link.call`, of the node that has the key. While the slot is being moved nothing happens there, so the
        call is made again within its budget."""
        loop = asyncio.get_running_loop()
        until = loop.time() + budget_s
        slot = key_slot(order.base_key.encode())
        pause_s = _SHORTEST_PAUSE_S
        while True:
            host = self._home_of.get(slot)
            if host is None:
                self._is_doubted.set()
                raise StoreUnavailable("no node known serves the queue's slot", metadata={"cause": "CLUSTERDOWN"})
            try:
                left_s = until - loop.time()
                return await self._links[host].call(order, budget_s=left_s)
            except Moving as error:
                self._is_doubted.set()
                if loop.time() + pause_s >= until:
                    raise
                if error.moved_to is not None:
                    self._note_home(slot, (error.moved_to[0] or host[0], error.moved_to[1]))
                await asyncio.sleep(pause_s * (0.5 + random.random()))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def returns(self, error: StoreUnavailable, *, until: float) -> bool:  # noqa: ARG002 - it is not waited for
        """The caller is told."""
        return False

    # -- the map ------------------------------------------------------------------------------------------------------

    def _note_home(self, slot: int, host: Host) -> None:
        """A node said who has the slot. One that is not known yet will be when the map is renewed."""
        if host in self._links and self._home_of.get(slot) != host:
            self._home_of[slot] = host
            self._rows = None
            self.on_move()

    async def _keep_map(self) -> None:
        loop = asyncio.get_running_loop()
        doubted_until = loop.time()
        while True:
            if self._is_doubted.is_set():
                self._is_doubted.clear()
                doubted_until = loop.time() + _DOUBT_S
            is_doubted = loop.time() < doubted_until
            try:
                await self._renew_map(is_doubted=is_doubted)
            except HeadwayError as error:
                log.debug("cluster.not_mapped", error=error.text)
            except Exception:  # loop guard: slots go on moving
                log.exception("cluster.not_mapped")
            await asyncio.sleep(_ASK_AGAIN_S)
            if self._home_of and not is_doubted:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_ASK_EVERY_S - _ASK_AGAIN_S):
                        await self._is_doubted.wait()

    async def _renew_map(self, *, is_doubted: bool) -> None:
        """Takes the first answer of a node that knows the cluster to be well. In doubt all primaries are asked at once:
        one that is silent must not be waited for. Raises the last one's error."""
        known = random.sample(list(self._links.items()), len(self._links))
        try:
            return await self._first_map(known if is_doubted else known[:1])
        except HeadwayError:
            fresh = {
                host: Link(self._source_of(host), call_timeout_s=self._call_timeout_s) for host in self._address.hosts
            }
            try:
                return await self._first_map(list(fresh.items()), answers=_ANSWERS)
            finally:
                await asyncio.gather(*(link.close() for link in fresh.values()))

    async def _first_map(self, nodes: Sequence[tuple[Host, Link]], *, answers: int = 1) -> None:
        last: HeadwayError = StoreUnavailable("no node of the cluster answers", metadata={"cause": "REFUSED"})
        asking = [asyncio.ensure_future(self._ask_map(host, link, answers=answers)) for host, link in nodes]
        try:
            for answer in asyncio.as_completed(asking):
                try:
                    return await answer
                except HeadwayError as error:
                    last = error
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        raise last

    async def _ask_map(self, host: Host, link: Link, *, answers: int = 1) -> None:
        async with _answer_within(answers * self._call_timeout_s):
            told, rows = map(checked, await link.commands(("CLUSTER", "INFO"), ("CLUSTER", "SLOTS")))
        state = dict(line.partition(":")[::2] for line in told.decode().splitlines())
        epoch = int(state.get("cluster_current_epoch", 0))
        if state.get("cluster_state") != "ok" or not self._is_present(epoch):
            raise StoreUnavailable("the cluster is down", metadata={"cause": "CLUSTERDOWN"})
        self._epoch = epoch
        if rows == self._rows:
            return
        home_of: dict[int, Host] = {}
        for first, last, (name, port, *_), *_ in rows:
            node = (name.decode() if name else host[0], int(port))
            home_of.update(dict.fromkeys(range(int(first), int(last) + 1), node))
        self._take(home_of)
        self._rows = rows

    def _is_present(self, epoch: int) -> bool:
        """Whether what a node tells is not of the past."""
        if epoch >= self._epoch:
            self._past_since = None
            return True
        now = asyncio.get_running_loop().time()
        if self._past_since is None:
            self._past_since = now
        if now < self._past_since + _PAST_S:
            return False
        log.warning("cluster.made_anew", epoch=epoch, before=self._epoch)
        self._past_since = None
        return True

    def _take(self, home_of: dict[int, Host]) -> None:
        if home_of == self._home_of:
            return
        primaries = set(home_of.values())
        for host in self._links.keys() - primaries:
            task = asyncio.create_task(self._links.pop(host).close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        others = primaries - self._links.keys()
        for host in others:
            self._links[host] = Link(
                self._source_of(host),
                call_timeout_s=self._call_timeout_s,
                min_replicas=self._min_replicas,
                on_doubt=self._is_doubted.set,
                may_write=self.may_write,
                is_cluster=True,
            )
        log.info("cluster.mapped", primaries=sorted(f"{host}:{port}" for host, port in primaries))
        self._home_of = home_of
        self._is_known.set()
        (self.on_other if others else self.on_move)()

    def _source_of(self, host: Host) -> ConnectionSource:
        return ConnectionSource(
            self._address, call_timeout_s=self._call_timeout_s, password_file=self._password_file, at=host
        )


@contextlib.asynccontextmanager
async def _answer_within(seconds: float) -> Any:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise StoreUnavailable("the node did not answer in time", metadata={"cause": "SILENT"}) from None
