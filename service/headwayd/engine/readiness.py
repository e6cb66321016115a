"""Whether the store can be counted on, for those who choose a process to send calls to. No call waits for this.

The store is asked every second. Several answers in a row change the verdict, never a single one: a hiccup must not
send all callers of a process elsewhere and back. Why it is not ready is told in the log, and again when that changes.
Whether the process itself lives is another question, which the store is not asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from headwayd.domain.errors import HeadwayError
from headwayd.domain.limits import STORE_BUDGET_S
from headwayd.engine.ports import Store

_EVERY_S = 1.0
# Failures in a row until not ready, answers in a row until ready again.
FAILURES = 3
ANSWERS = 2
log = structlog.get_logger(__name__)


class Readiness:
    """Asks the store until stopped. It begins ready if the store answered at the start."""

    def __init__(self, store: Store, *, every_s: float = _EVERY_S) -> None:
        self._store = store
        self._every_s = every_s
        self._listener: Callable[[bool], None] = lambda _is_ready: None
        self._is_ready = False
        self._did_answer = False
        self._contrary_count = 0
        self._why: HeadwayError | None = None  # the store did not answer
        self._told: tuple[str, str] | None = None  # of it
        self._stopped = asyncio.Event()

    def on_change(self, listener: Callable[[bool], None]) -> None:
        """Who is told whether the store can be counted on: now, and at every change."""
        self._listener = listener
        listener(self._is_ready)

    def stop(self) -> None:
        """`run` ends after the question that is under way."""
        self._stopped.set()

    async def run(self) -> None:
        """Runs until stopped or cancelled."""
        self._did_answer = self._store.facts.is_reachable
        self._set(self._did_answer)
        while not self._stopped.is_set():
            try:
                async with asyncio.timeout(self._every_s):
                    await self._stopped.wait()
            except TimeoutError:
                await self._ask()

    async def _ask(self) -> None:
        # A store that was away may have come back as another one: it is asked anew what it is. It has as long as one
        # answer may take at most (`--store-timeout`): what needs a new connection, and so several answers, may find it
        # made only at the next question.
        ask = self._store.ping if self._did_answer else self._store.probe
        try:
            await ask(budget_s=STORE_BUDGET_S)
            self._did_answer = True
        except HeadwayError as error:
            self._did_answer, self._why = False, error
            log.debug("readiness.store_failed", reason=error.reason.name)
        self._weigh()
        self._tell_why()

    def _tell_why(self) -> None:
        if self._is_ready:
            self._told = None
        elif self._why is not None and not self._did_answer:
            why = self._why.metadata.get("cause", ""), self._why.text
            if why != self._told:
                self._told = why
                log.warning("the store does not answer: not ready", cause=why[0], error=why[1])

    def _weigh(self) -> None:
        if self._did_answer == self._is_ready:
            self._contrary_count = 0
            return
        self._contrary_count += 1
        if self._contrary_count >= (ANSWERS if self._did_answer else FAILURES):
            self._contrary_count = 0
            self._set(self._did_answer)
            if self._is_ready:
                log.info("the store answers again: ready")

    def _set(self, is_ready: bool) -> None:
        if is_ready != self._is_ready:
            self._is_ready = is_ready
            self._listener(is_ready)
