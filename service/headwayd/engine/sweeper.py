"""Does in time what time alone brings: delayed messages fall due, leases lapse. Nobody polls for it.

The store tells with every reply, and every process announces to the others, when a queue next needs a visit; the
sweeper sleeps until the earliest. Several processes may visit at once: each step is atomic, so every message moves
once. What a process never heard of, because it was not there or not connected, it finds by listing the queues once
after each connect, and, for safety, rarely.
"""

from __future__ import annotations

import asyncio

import structlog

from headwayd.domain.errors import HeadwayError, NewerLayout
from headwayd.domain.limits import STORE_BUDGET_S
from headwayd.engine.budgets import LIST_BUDGET_S
from headwayd.engine.ports import Store
from headwayd.engine.tasks import Spawn
from headwayd.engine.watching.alarms import Alarms

_RETRY_S = 0.25
_LONGEST_RETRY_S = 60.0  # of the list
_VISITS_AT_ONCE = 16
_LIST_EVERY_S = 300.0
_NOTED_IN_ONE_TURN = 500  # of those that a list has found: more in one turn of the loop would hold up all calls
_LONGEST_SLEEP_S = 60.0
log = structlog.get_logger(__name__)


class Sweeper:
    """One task that knows when which queue needs a visit."""

    def __init__(self, store: Store, spawn: Spawn) -> None:
        self._store = store
        self._spawn = spawn
        self._due: Alarms[str] = Alarms()
        self._changed = asyncio.Event()
        self._visiting: set[str] = set()
        self._overdue: set[str] = set()  # whose time has come again while they are visited
        self._must_list = True
        self._list_retry_s = _RETRY_S
        self._is_stopped = False

    def note(self, queue: str, delay_s: float) -> None:
        """The queue needs a visit in `delay_s` seconds; an earlier one that is known stays."""
        at = asyncio.get_running_loop().time() + delay_s
        known = self._due.at(queue)
        if known is None or at < known:
            self._enter(queue, at)

    def _enter(self, queue: str, at: float) -> None:
        first = self._due.first()
        self._due.set(queue, at)
        if first is None or at < first:
            self._changed.set()

    def stop(self) -> None:
        """`run` ends at the next turn; visits under way go on to their end."""
        self._is_stopped = True
        self._changed.set()

    def list_anew(self) -> None:
        """Announcements may have been missed."""
        self._must_list = True
        self._changed.set()

    async def run(self) -> None:
        """Runs until stopped or cancelled."""
        listing: asyncio.Task[None] | None = None
        try:
            listed_at = asyncio.get_running_loop().time()
            while not self._is_stopped:
                self._changed.clear()
                now = asyncio.get_running_loop().time()
                if listing is not None and listing.done():
                    listing.result()
                    listing = None
                if listing is None and (self._must_list or now - listed_at > _LIST_EVERY_S):
                    self._must_list = False
                    listed_at = now
                    listing = asyncio.create_task(self._list(), name="sweep:list")
                await self._visit_due(now)
        finally:
            if listing is not None:
                listing.cancel()

    async def _visit_due(self, now: float) -> None:
        """Begins visits whose time has come, as many as there may be at once, and waits for the next, or for a change.
        Many queues may be due together; a task for each in one turn of the loop would hold up all calls.
        """
        for queue in self._due.pop(now, most=_VISITS_AT_ONCE - len(self._visiting)):
            if queue in self._visiting:
                self._overdue.add(queue)
                continue
            self._visiting.add(queue)
            self._spawn(self._visit(queue), f"sweep:{queue}")
        first = self._due.first() if self._has_room() else None  # without room the end of a visit is the next change
        now = asyncio.get_running_loop().time()
        sleep_s = _LONGEST_SLEEP_S if first is None else min(first - now, _LONGEST_SLEEP_S)
        try:
            async with asyncio.timeout(max(sleep_s, 0)):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _has_room(self) -> bool:
        return len(self._visiting) < _VISITS_AT_ONCE

    async def _list(self) -> None:
        """Beside the visits: it may take long where the store has very many keys, also of others."""
        names, missing = await self._store.names_with_own_keys(budget_s=LIST_BUDGET_S)
        # Of queues that are no more a visit finds nothing, and they are known no longer.
        found = names if missing is not None else {*names, *self._due}
        for number, queue in enumerate(found, 1):
            self.note(queue, 0.0)
            if number % _NOTED_IN_ONE_TURN == 0:
                await asyncio.sleep(0)
        if missing is None:
            self._list_retry_s = _RETRY_S
        else:
            log.info("sweeper.list_failed", reason=missing.reason.name, again_s=self._list_retry_s)
            asyncio.get_running_loop().call_later(self._list_retry_s, self.list_anew)
            self._list_retry_s = min(2 * self._list_retry_s, _LONGEST_RETRY_S)
        self._changed.set()

    async def _visit(self, queue: str) -> None:
        """One bounded step; more of the same queue waits its turn behind other queues."""
        retry_s: float | None = None
        try:
            if await self._store.sweep(queue, budget_s=STORE_BUDGET_S):
                retry_s = 0.0
        except NewerLayout:  # looked at again with the next list
            log.warning("a newer version has changed how this queue is kept; it is left alone", queue=queue)
        except HeadwayError as error:
            log.debug("sweeper.visit_failed", queue=queue, reason=error.reason.name)
            retry_s = _RETRY_S
        finally:
            if not self._has_room():
                self._changed.set()
            self._visiting.discard(queue)
            is_overdue = queue in self._overdue
            self._overdue.discard(queue)
        if is_overdue and retry_s is None:
            retry_s = 0.0
        if retry_s is not None:
            self._enter(queue, asyncio.get_running_loop().time() + retry_s)
