"""Runs several workers behind the same addresses, and the embedded store that they use: starts, restarts, ends them.

It serves nobody itself and knows no gRPC: workers are fresh processes, because gRPC does not survive a fork. To the
store each is a process of its own, as if it ran on another machine; so whatever holds between services holds between
workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import structlog

from headwayd.config.settings import Settings
from headwayd.sockets import CannotListen, held
from headwayd.store.children import start_child
from headwayd.store.data_folder import EmbeddedStoreFailed
from headwayd.store.durability import ALWAYS
from headwayd.store.embedded import EmbeddedStore
from headwayd.telemetry import logs
from headwayd.telemetry.sharing import make_places
from headwayd.worker import Orders


class WorkersFailed(Exception):
    """A worker did not come to serve at the start, or did not end when told to."""


# Why it can end for reasons that are not defects; their texts are for the operator.
START_ERRORS: Final = (CannotListen, EmbeddedStoreFailed, WorkersFailed)

_MIN_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 5.0
_STABLE_S = 10.0  # a worker that lived that long is replaced without backoff
# What a worker's shut-down may take beyond the drain delay and the grace. One that takes longer is killed.
_BEYOND_GRACE: Final = timedelta(seconds=30)

log: Any = structlog.get_logger(__name__)


class Worker:
    """A place among the workers: the process that fills it, and those that come after it. `on_serving` gets what the
    first of them that serves says."""

    def __init__(self, orders: Orders, *, told: asyncio.Event, on_serving: Callable[[str], None]) -> None:
        self._orders = orders
        self._told = told
        self._on_serving = on_serving
        self._process: asyncio.subprocess.Process | None = None
        self._has_served = False

    @property
    def number(self) -> int:
        """Its name in the log, from 1."""
        return self._orders.number

    async def keep(self) -> None:
        """Fills the place until told to stop. Raises WorkersFailed if the first process does not come to serve."""
        backoff_s = _MIN_BACKOFF_S
        while not self._told.is_set():
            started_at = time.monotonic()
            try:
                await self._start()
            except (OSError, RuntimeError) as error:  # no process, or no thread that could wait for it
                if not self._has_served:
                    raise WorkersFailed(f"worker {self.number} could not be started: {error}") from error
                why = {"worker": self.number, "error": str(error), "backoff_s": backoff_s}
                log.error("worker could not be started, trying again", **why)  # noqa: TRY400 - no trace
            else:
                code = await self._until_it_ends()
                if code is None:
                    return
                if not self._has_served:
                    raise WorkersFailed(f"worker {self.number} ended with {code} before it served")
                if time.monotonic() - started_at > _STABLE_S:
                    backoff_s = _MIN_BACKOFF_S
                log.error("worker ended, starting another", worker=self.number, exit_code=code, backoff_s=backoff_s)
            await _first(asyncio.sleep(backoff_s), self._told.wait())
            backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)

    def send(self, number: signal.Signals) -> None:
        """To its process, if there is one."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                self._process.send_signal(number)

    async def end(self, within_s: float) -> bool:
        """Waits for the process, which was told to stop, and kills it after the bound. False if it had to."""
        process = self._process
        if process is None:
            return True
        try:
            async with asyncio.timeout(within_s):
                await process.wait()
        except TimeoutError:
            log.error("worker did not end, killing it", worker=self.number, pid=process.pid)  # noqa: TRY400 - no trace
            process.kill()
            await process.wait()
            return False
        return True

    async def _start(self) -> None:
        # A session of its own: Ctrl-C in a terminal must reach the supervisor alone, which tells every worker once.
        self._process = await start_child(
            (sys.executable, "-P", "-m", "headwayd.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            pass_fds=self._orders.places,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(self._orders.pack())
        log.info("worker starts", worker=self.number, pid=self._process.pid)
        if self._told.is_set():  # too late for the others' signal
            self.send(signal.SIGTERM)

    async def _until_it_ends(self) -> int | None:
        """The exit code, or None when told to stop."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = await _first(self._process.stdout.readline(), self._told.wait())
        if isinstance(line, bytes) and line:
            log.info("worker serves", worker=self.number, pid=self._process.pid)
            if not self._has_served:
                self._has_served = True
                self._on_serving(line.decode().rstrip())
        code = await _first(self._process.wait(), self._told.wait())
        return None if self._told.is_set() else int(code)


async def _first(*waits: Any) -> Any:
    """What the first of them to end returns, in their order; the others are cancelled and have ended, too."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task.done()).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Supervisor:
    """All workers, from their start to the end of the last one: `run`, once."""

    def __init__(self, settings: Settings, *, announce: Callable[[str], None]) -> None:
        self._settings = settings
        self._announce = announce
        self._told = asyncio.Event()
        self._workers: list[Worker] = []
        self._missing = settings.workers

    async def run(self) -> None:
        """Serves until SIGTERM or SIGINT, which every worker is told, too. Raises START_ERRORS."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        http = [] if self._settings.http_listen is None else [self._settings.http_listen]
        with held((*self._settings.listen, *http)) as addresses:
            count = len(self._settings.listen)
            real = {"listen": addresses[:count], "http_listen": addresses[-1] if http else None}
            settings = self._settings.model_copy(update=real)
            if settings.store_url is not None:
                await self._supervise(settings, None)
                return
            store = EmbeddedStore(settings.data_dir, is_always=settings.durability == ALWAYS)
            try:
                await _first(store.start(), self._told.wait())
                await self._supervise(settings, store.url)
            finally:
                await store.close()

    def _on_signal(self, number: signal.Signals) -> None:
        log.info("told to stop", signal=number.name, again=self._told.is_set())
        self._told.set()
        for worker in self._workers:
            worker.send(signal.SIGTERM)

    async def _supervise(self, settings: Settings, store_url: str | None) -> None:
        # Numbers that only a worker's HTTP port tells are of all workers; who sends them tells which process it is.
        places = tuple(make_places(settings.workers)) if settings.http_listen is not None else ()
        self._workers = [
            Worker(Orders(number, settings, store_url, places), told=self._told, on_serving=self._on_serving)
            for number in range(1, settings.workers + 1)
        ]
        try:
            async with asyncio.TaskGroup() as tasks:
                for worker in self._workers:
                    tasks.create_task(worker.keep())
        except* WorkersFailed as failed:
            raise failed.exceptions[0] from None
        finally:
            await self._end()

    def _on_serving(self, line: str) -> None:
        """All workers say the same, so the last one that comes to serve speaks for all."""
        self._missing -= 1
        if self._missing == 0:
            self._announce(line)

    async def _end(self) -> None:
        if not self._told.is_set():  # a start that failed: the signal handler has told nobody yet
            self._told.set()
            for worker in self._workers:
                worker.send(signal.SIGTERM)
        within = self._settings.drain_delay + self._settings.shutdown_grace + _BEYOND_GRACE
        ended = await asyncio.gather(*(worker.end(within.total_seconds()) for worker in self._workers))
        if not all(ended):
            raise WorkersFailed(f"{ended.count(False)} workers had to be killed")


def run(settings: Settings, *, announce: Callable[[str], None]) -> None:
    """Runs the supervisor. `announce` gets the one line that says where all workers serve. Raises START_ERRORS."""
    logs.set_up(log_format=settings.log_format, level=settings.log_level)

    async def supervise() -> None:
        await Supervisor(settings, announce=announce).run()

    asyncio.run(supervise())
    log.info("all workers have ended")
    logs.flush()
