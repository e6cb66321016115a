"""One store, its connections and its clock: how scripts are asked, and what every reply teaches on the way.

Nothing is kept here but connections and the offset between the store's clock and this process's.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import structlog

from headwayd.domain import names
from headwayd.domain.errors import (
    NotDurable,
    StoreUnavailable,
)
from headwayd.domain.limits import Limits
from headwayd.domain.model import (
    Queue,
    StoreFacts,
)
from headwayd.domain.namespaces import split
from headwayd.engine.ports import DueListener, HintListener
from headwayd.store import keys, replies
from headwayd.store.address import parse_address
from headwayd.store.connections import ANSWERS_TO_OPEN
from headwayd.store.durability import AUTO, MEMORY, Demand
from headwayd.store.facts import ask_facts
from headwayd.store.gates import Gate, Gates
from headwayd.store.hints import Hints
from headwayd.store.link import Link, ScriptOrder
from headwayd.store.packing import Argument, Run
from headwayd.store.pipelines import READ_ONLY
from headwayd.store.scripts import Script, all_scripts
from headwayd.store.servers import servers_at
from headwayd.store.several import ask_each
from headwayd.store.trouble import Unlooked

_MANY_ITEMS = 50  # cost the store more than half a millisecond
DEAR = 4  # what takes messages out of the middle of something costs the store as much as so many puts, gets or acks
_LOOK_EVERY_S = 10.0  # for what an operator may have changed
# Of a look over a new connection: whether transactions are permitted, which process it leads to, and what it is, come
# last.
_ANSWERS = ANSWERS_TO_OPEN + 3
_PAUSE_S = 0.02  # between two looks of one who waits for the store
_ANY = Demand()
_STANDARD = Limits()
_NEVER_LOOKED = "the store has not said yet what it keeps"
log = structlog.get_logger(__name__)


class Asking:
    """`process` names this process in role keys and channels; `limits` are those of leases and delays, where a queue's
    policy or the store's clock decides; `scripts` replaces the scripts (by a test's, with another clock). While the
    store does not keep the durability of `demand`, everything that writes raises NotDurable."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str,
        process: str,
        embedded: bool,
        call_timeout: timedelta,
        demand: Demand = _ANY,
        password_file: Path | None = None,
        sentinel_password_file: Path | None = None,
        limits: Limits = _STANDARD,
        scripts: Mapping[str, Script] | None = None,
    ) -> None:
        self._prefix = prefix
        self._process = process
        self._is_embedded = embedded
        self._timeout_s = call_timeout.total_seconds()
        self._look_s = _ANSWERS * self._timeout_s
        self._max_delay_ms = limits.max_delay_ms
        self._scripts = scripts or all_scripts(limits.max_lease_ms, limits.max_delay_ms)
        self._demand = demand
        address = parse_address(url)
        # Channels are one space for all databases of a server.
        self._channels = f"{prefix}:{address.database}" if address.database else prefix
        self._servers = servers_at(
            address,
            call_timeout_s=self._timeout_s,
            min_replicas=demand.waits_for,
            password_file=password_file,
            sentinel_password_file=sentinel_password_file,
        )
        self._servers.on_other = self._on_other_server
        self._servers.on_move = self._on_queues_moved
        self._servers.may_write = self._may_write
        self._hints = Hints(
            prefix=prefix,
            channels=self._channels,
            process=process,
            call_timeout_s=self._timeout_s,
            home=self._servers.home,
            is_cluster=self._servers.is_cluster,
        )
        self._gates = Gates()
        # Why nothing is written now, to no server. What any store keeps need not be found out first.
        self._unlooked = "" if demand.profile in (AUTO, MEMORY) else _NEVER_LOOKED
        self._refusal = self._unlooked
        self._looked_at = -math.inf
        self._looking: asyncio.Task[StoreUnavailable | None] | None = None
        self._changes = 0  # how often the store became another one
        self._facts = StoreFacts(is_embedded=embedded, prefix=prefix)
        self._told: Sequence[str] = ()  # of what it lacks
        self._clock_ahead_ms: float | None = None
        self._due_listener: DueListener = lambda _queue, _delay_s: None
        self._answer_listener: Callable[[str, float], None] | None = None

    @property
    def facts(self) -> StoreFacts:
        """What was last found out about the store."""
        return self._facts

    async def start(self) -> None:
        """Connects and finds out what the store is. Raises StoreUnavailable; then `start` may be called again, and all
        calls work as soon as the store does."""
        self._hints.on_due = self._on_announced_due
        await self._servers.start(wait_s=self._timeout_s)
        self._hints.hear(self._servers.sources)
        await self._hints.wait(wait_s=self._timeout_s)
        await self.probe(budget_s=self._look_s)

    async def close(self) -> None:
        """Drops all connections."""
        if self._looking is not None:
            self._looking.cancel()
        await self._hints.close()
        await self._servers.close()

    def _may_write(self, link: Link) -> bool:
        """Whether all servers that answered keep what was asked for, and this one is among them."""
        return not self._refusal and (not self._unlooked or link.refusal == "")

    def _on_other_server(self) -> None:
        """Nothing is written on the word of the one before. A cluster's others have given their own, which count."""
        if self._refusal or not self._servers.is_cluster:
            self._refusal = self._unlooked
        self._changes += 1
        self._on_queues_moved()

    def _on_queues_moved(self) -> None:
        self._hints.hear(self._servers.sources)
        if self._servers.is_cluster:
            self._hints.look_again()
        else:
            self._hints.renew()
        self._look()

    def _look(self) -> None:
        """Finds out in the background what the store is now."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._probe_quietly(), name="facts")

    async def _probe_quietly(self) -> StoreUnavailable | None:
        """Returns why it is not known what the store is now."""
        while True:
            changes, trouble = self._changes, None
            try:
                await self.probe(budget_s=self._look_s)
            except StoreUnavailable as error:  # whoever asks next will hear of it
                trouble = error
            if changes == self._changes:  # else it may have been the one before that answered
                return trouble

    async def _look_first(self, *, until: float, one_is_missing: bool = False) -> None:
        """Before the first that is written to a server: finds out whether it keeps what was asked for, for all together
        who wait for that; also if only `one_is_missing` of several. Raises NotDurable, and StoreUnavailable if it is
        not found out in time."""
        loop = asyncio.get_running_loop()
        while one_is_missing or self._refusal is _NEVER_LOOKED:
            one_is_missing = False
            self._look()
            looking = self._looking
            assert looking is not None
            await asyncio.wait({looking}, timeout=until - loop.time())
            if not looking.done() or looking.cancelled():
                raise StoreUnavailable(_NEVER_LOOKED, metadata={"cause": "SILENT"})
            trouble = looking.result()
            if trouble is not None and not await self._servers.returns(trouble, until=until):
                raise StoreUnavailable(trouble.text, metadata=trouble.metadata)
            if trouble is not None:
                await asyncio.sleep(_PAUSE_S)
        if self._refusal:
            raise NotDurable(self._refusal)

    async def probe(self, *, budget_s: float) -> StoreFacts:
        """Asks the store anew what it is. Raises StoreUnavailable; `facts` then says that it is not reachable."""
        changes = self._changes

        def note(link: Link, facts: StoreFacts) -> None:
            self._heed_clock(link)
            if changes == self._changes:  # else it is not known whose word that is
                link.note(facts.refusal, run=facts.run if self._unlooked else "")

        try:
            self._facts = await ask_facts(
                self._servers.links,
                self._demand,
                note=note,
                is_embedded=self._is_embedded,
                prefix=self._prefix,
                within_s=budget_s,
            )
        except StoreUnavailable:
            self._facts = replace(self._facts, is_reachable=False)
            raise
        self._looked_at = asyncio.get_running_loop().time()
        self._tell_warnings()
        if self._facts.refusal and self._facts.refusal != self._refusal:
            log.error("nothing is written: the store does not keep what was asked for", why=self._facts.refusal)
        if changes == self._changes:
            self._refusal = self._facts.refusal
        return self._facts

    def _tell_warnings(self) -> None:
        """Each when it comes up, whenever that is. Why nothing is written is told by itself."""
        told, self._told = self._told, self._facts.warnings
        for warning in self._told:
            if warning not in told and warning != self._facts.refusal:
                log.warning("store", warning=warning)

    async def ping(self, *, budget_s: float) -> None:
        """Asks the store for a sign of life; of several servers one is enough. Raises StoreUnavailable, also while it
        loads, or cannot save, or runs a script for too long; NotDurable while nothing is written. It lives though a
        look at what it is fails, which asks for more."""
        if self._refusal:
            await self.probe(budget_s=budget_s)
        elif asyncio.get_running_loop().time() - self._looked_at > _LOOK_EVERY_S:
            self._look()
        if self._refusal:
            raise NotDurable(self._refusal)
        await ask_each(self._servers.links, lambda link: link.command("PING"), within_s=budget_s)

    def on_hint(self, listener: HintListener) -> None:
        """Who is told that something may have changed for those who wait, and whether it was called by name."""
        self._hints.on_hint = listener

    def on_due(self, listener: DueListener) -> None:
        """Who is told when time alone will next change a queue: its name and the seconds until then."""
        self._due_listener = listener

    def on_reconnect(self, listener: Callable[[], None]) -> None:
        """Who is told that hints may have been missed, or that what is due may be so sooner than was told."""
        self._hints.on_reconnect = listener

    def on_answer(self, listener: Callable[[str, float], None]) -> None:
        """Who is told, after each script, its name and how many seconds its answer took, or its failure."""
        self._answer_listener = listener

    async def arm(self, queue: str, *, until_drained: bool) -> bool:
        """Asks to be told of the next change of this queue; with the leases, of a slot that comes free, too. False if
        there is nothing to lease just then, and it is not closed."""
        return await self._hints.arm(queue, until_drained=until_drained)

    @property
    def quiet_at_once(self) -> int:
        """How many queues `find_quiet` may be asked about in a second, for little."""
        return self._hints.quiet_at_once

    async def find_quiet(self, queues: Sequence[str]) -> Collection[str]:
        """Asks to be told of the next change of these queues. Those in which there is nothing to lease just then, and
        which are not closed; none of which that is not known."""
        return await self._hints.find_quiet(queues)

    # -- time ---------------------------------------------------------------------------------------------------------

    def _learn_time(self, now_ms: int) -> None:
        self._clock_ahead_ms = now_ms - asyncio.get_running_loop().time() * 1000

    def _heed_clock(self, link: Link) -> None:
        """If it has gone forward, what is due may be so sooner than was told."""
        if link.clock.has_gone_forward():
            self._clock_ahead_ms = link.clock.ahead_ms
            self._hints.on_reconnect()

    def _on_announced_due(self, queue: str, due_ms: int) -> None:
        if self._clock_ahead_ms is None:
            self._due_listener(queue, 0.0)
            return
        now_ms = asyncio.get_running_loop().time() * 1000 + self._clock_ahead_ms
        self._due_listener(queue, max(0.0, due_ms - now_ms) / 1000)

    def _note_due(self, queue: str, now: Any, due: Any) -> None:
        now_ms, due_ms = int(now), int(due)
        self._learn_time(now_ms)
        if due_ms:
            self._due_listener(queue, max(0, due_ms - now_ms) / 1000)

    # -- calling ------------------------------------------------------------------------------------------------------

    async def _ask(
        self,
        script: str,
        queue: str,
        *arguments: Argument | Run,
        budget_s: float,
        items: int = 1,
        gate: Gate | None = None,
    ) -> list[Any]:
        """The reply of a script that does something with so many `items`, which may go by way of a `gate`."""
        loop = asyncio.get_running_loop()
        until = loop.time() + budget_s
        if self._refusal and script not in READ_ONLY:
            await self._look_first(until=until)
        if self._servers.is_cluster:
            names.accept(split(queue)[1], is_cluster=True)
        base = keys.base_key(self._prefix, queue, is_cluster=self._servers.is_cluster)
        is_long = items >= _MANY_ITEMS
        order = ScriptOrder(self._scripts[script], base, self._channels, arguments, is_long=is_long, gate=gate)
        pause_s = 0.0
        began = time.perf_counter()  # the loop's own clock has whole milliseconds
        try:
            while True:
                try:
                    return await self._servers.call(order, budget_s=until - loop.time())
                except Unlooked:  # the store became another one on the way, or this one of several was silent so far
                    await asyncio.sleep(pause_s)
                    await self._look_first(until=until, one_is_missing=True)
                    pause_s = _PAUSE_S
        finally:
            if self._answer_listener is not None:
                self._answer_listener(script, time.perf_counter() - began)

    async def _ask_queue(self, script: str, queue: str, *arguments: Argument, budget_s: float) -> Queue:
        return self._queue(queue, await self._ask(script, queue, *arguments, budget_s=budget_s))

    def _queue(self, queue: str, reply: list[Any]) -> Queue:
        if (error := replies.missing(reply[0], queue)) is not None:
            raise error
        return replies.queue_of(queue, reply[1:], self._facts.durability)
