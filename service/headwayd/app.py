"""Puts the service together, runs it, and takes it apart in order. Knows every part and none of their rules."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import structlog

from headwayd import __version__
from headwayd.access.watched import AccessFailed
from headwayd.allocator import keep_freed_memory
from headwayd.config.settings import Settings
from headwayd.config.values import masked_url
from headwayd.domain.errors import NotDurable, StoreUnavailable
from headwayd.engine.engine import Engine
from headwayd.oversight import Doors, Oversight, SharedPlaces
from headwayd.rpc.descriptors import make_room_for
from headwayd.rpc.server import RpcServer
from headwayd.security import Security
from headwayd.sockets import CannotListen
from headwayd.store.data_folder import EmbeddedStoreFailed
from headwayd.store.durability import ALWAYS, Demand
from headwayd.store.embedded import EmbeddedStore
from headwayd.store.redis_store import RedisStore
from headwayd.telemetry import logs

if TYPE_CHECKING:
    from headwayd.telemetry.traces import Traces

# Why a start can fail for reasons that are not defects; their texts are for the operator.
START_ERRORS: Final = (
    AccessFailed,
    CannotListen,
    EmbeddedStoreFailed,
    NotDurable,
    StoreUnavailable,
)

log = structlog.get_logger(__name__)

_COLLECT_AFTER: Final = (2_000, 20, 100)  # objects more than before, and younger collections for one of the older

# Longer than anything a step should take by itself; a step that hangs must not keep the next ones from their turn.
_STEP: Final = timedelta(seconds=10)
_STOP_EMBEDDED: Final = timedelta(seconds=20)
# What the RPC server needs beyond the grace, for the clean-up of cancelled handlers.
_CLEAN_UP: Final = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the shut-down. After `within` it is given up, and the next one has its turn."""

    name: str
    run: Callable[[], Awaitable[None]]
    within: timedelta = _STEP


class Service:
    """One service process: `start`, then `stop`, whatever happened in between.

    A worker is one of several on the same addresses; `store_url` is the embedded store that all of them use, if any,
    and `shared` has the numbers of all of them.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        is_worker: bool = False,
        store_url: str | None = None,
        shared: SharedPlaces | None = None,
    ) -> None:
        self._settings = settings
        self._is_worker = is_worker
        self.process = f"headway/{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"
        self._has_embedded = settings.store_url is None  # its own or its supervisor's
        url = settings.store_url or store_url
        self._embedded = (
            EmbeddedStore(settings.data_dir, is_always=settings.durability == ALWAYS) if url is None else None
        )
        self._url = self._embedded.url if self._embedded else str(url)
        self._store = RedisStore(
            self._url,
            prefix=settings.prefix,
            process=self.process,
            embedded=self._has_embedded,
            call_timeout=settings.store_timeout,
            demand=Demand(settings.durability, settings.min_replicas),
            password_file=settings.redis_password_file,
            sentinel_password_file=settings.redis_sentinel_password_file,
            limits=settings.limits,
        )
        self._oversight = Oversight(settings, process=self.process, is_worker=is_worker, shared=shared)
        self._engine = Engine(
            self._store,
            process=self.process,
            limits=settings.limits,
            wall_ms=lambda: time.time_ns() // 1_000_000,
            goes_together=not settings.plain,
            counts=self._oversight.counts,
        )
        self._server: RpcServer | None = None
        self._security = Security(settings, self._engine)
        self._traces: Traces | None = None

    async def start(self) -> list[str]:
        """Serves; returns the addresses. Raises those of START_ERRORS; StoreUnavailable only of an embedded store.

        A server that is down at the start is waited for while serving: calls answer UNAVAILABLE until it is there.
        """
        await self._security.start()
        if self._embedded:
            await self._embedded.start()
        try:
            await self._store.start()
        except StoreUnavailable as error:
            if self._embedded:
                raise
            log.warning("store is not there yet, serving anyway", store=masked_url(self._url), error=error.text)
        if self._store.facts.refusal:
            raise NotDurable(self._store.facts.refusal)
        await self._engine.start()
        settings, limits = self._settings, self._settings.limits
        wanted = limits.max_connections + self._oversight.most_connections
        if (possible := make_room_for(wanted)) < wanted:
            log.warning("too few file descriptors (ulimit -n) for all connections", wanted=wanted, possible=possible)
        if settings.otlp_endpoint is not None:
            from headwayd.telemetry.traces import Traces  # noqa: PLC0415 - loads the SDK, which only tracing needs

            self._traces = Traces(endpoint=settings.otlp_endpoint, ratio=settings.trace_ratio, process=self.process)
        self._server = server = RpcServer(
            self._engine,
            listen=settings.listen,
            limits=limits,
            keepalive=settings.keepalive,
            keepalive_timeout=settings.keepalive_timeout,
            max_connection_idle=settings.max_connection_idle,
            handshake_timeout=settings.handshake_timeout,
            write_timeout=settings.write_timeout,
            reuse_port=self._is_worker,
            acceptors=settings.acceptors,
            flood_calls=settings.flood_calls,
            receive_window=settings.capacity(settings.workers).receive_window,
            is_plain=settings.plain,
            scales=settings.keda,
            counts=self._oversight.counts,
            tls=self._security.tls,
            guarding=self._security.guarding,
            has_reflection=settings.reflection,
            tracer=self._traces.jobs if self._traces else None,
        )
        self._security.on_look(self._server.look_at_running)
        addresses = await self._server.start()
        doors = Doors(tls=self._security.http_context, is_operator=self._server.is_operator)
        addresses += await self._oversight.start(
            self._engine, self._store, server.bridge, keeps_flood_out=lambda: server.keeps_flood_out, doors=doors
        )
        self._engine.on_readiness(self._set_ready)
        self._set_serving(True)
        return addresses

    def _set_ready(self, is_ready: bool) -> None:
        if self._server:
            self._server.set_ready(is_ready)
        self._oversight.set_ready(is_ready)

    def _set_serving(self, is_serving: bool) -> None:
        if self._server:
            self._server.set_serving(is_serving)
        self._oversight.set_serving(is_serving)

    @property
    def store_text(self) -> str:
        """The store in half a line."""
        facts = self._store.facts
        place = str(self._settings.data_dir) if self._has_embedded else masked_url(self._url)
        if not facts.is_reachable:
            return f"{place}, not reachable yet"
        return f"{'embedded ' if self._has_embedded else ''}{facts.kind} {facts.version}, {facts.durability}, {place}"

    def steps(self, hurry: asyncio.Event) -> list[Step]:
        """The shut-down, in order. `hurry` ends the drain delay and the grace early."""
        settings = self._settings
        grace = settings.shutdown_grace
        return [
            Step("say NOT_SERVING", self._say_not_serving),
            Step("drain delay", lambda: _pause(settings.drain_delay, hurry), settings.drain_delay + _STEP),
            Step("give up the places of HTTP connections", self._oversight.leave_lines),
            Step("end waits", self._end_waits),
            Step("stop taking calls, let running ones end", lambda: self._stop_server(hurry), grace + _CLEAN_UP),
            Step("close the HTTP port", self._oversight.stop_http),
            Step("stop looking at files", self._security.stop),
            Step("stop background work", self._engine.stop),
            Step("close the store's connections", self._store.close),
            Step("stop the embedded store", self._stop_embedded, _STOP_EMBEDDED),
            Step("send the last metrics", self._oversight.finish),
            Step("send the last traces", self._close_traces),
            Step("flush the log", self._flush),
        ]

    async def stop(self, hurry: asyncio.Event) -> None:
        """Takes every step, even if an earlier one failed or hung. Safe after a start that failed half way."""
        for step in self.steps(hurry):
            try:
                async with asyncio.timeout(step.within.total_seconds()):
                    await step.run()
            except TimeoutError:
                log.error("shut-down step took too long", step=step.name)  # noqa: TRY400 - the trace is this line's
            except Exception:  # loop guard: the next steps must have their turn
                log.exception("shut-down step failed", step=step.name)
            else:
                log.debug("shut-down step done", step=step.name)

    async def _say_not_serving(self) -> None:
        self._set_serving(False)

    async def _end_waits(self) -> None:
        if self._server:
            self._server.start_draining()
        await self._engine.drain()

    async def _stop_server(self, hurry: asyncio.Event) -> None:
        if not self._server:
            return
        if hurry.is_set():
            await self._server.stop(timedelta(0))
            return
        async with asyncio.TaskGroup() as tasks:
            stopping = tasks.create_task(self._server.stop(self._settings.shutdown_grace))
            hurried = tasks.create_task(hurry.wait())
            await asyncio.wait({stopping, hurried}, return_when=asyncio.FIRST_COMPLETED)
            hurried.cancel()
            if not stopping.done():
                await self._server.stop(timedelta(0))

    async def _stop_embedded(self) -> None:
        if self._embedded:
            await self._embedded.close()

    async def _close_traces(self) -> None:
        if self._traces:
            await self._traces.close()

    async def _flush(self) -> None:
        logs.flush()


async def _pause(span: timedelta, hurry: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(span.total_seconds()):
            await hurry.wait()
    except TimeoutError:
        pass


async def serve(service: Service, *, announce: Callable[[str], None]) -> None:
    """Serves until SIGTERM or SIGINT, then shuts down in order; a second signal makes it hurry.

    `announce` gets the one line that says where it serves. Raises what `Service.start` raises.
    """
    told, hurry = asyncio.Event(), asyncio.Event()

    def on_signal(name: str) -> None:
        log.info("told to stop", signal=name, again=told.is_set())
        (hurry if told.is_set() else told).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    try:
        starting = asyncio.ensure_future(service.start())
        stopping = asyncio.ensure_future(told.wait())
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                starting.cancel()  # told to stop before it served
                await asyncio.wait({starting})
                return
            addresses = starting.result()
            _relieve_collector()
            announce(f"headwayd {__version__} serving on {', '.join(addresses)} (store: {service.store_text})")
            log.info("serving", addresses=addresses, store=service.store_text, process=service.process)
            await told.wait()
        finally:
            stopping.cancel()
    finally:
        await service.stop(hurry)


def _relieve_collector() -> None:
    """What the start has made lives as long as the process: the garbage collector need not look at it again. Of each
    call grpc.aio leaves a small cycle behind, so the youngest are looked at often, a few at a time (50,000 at once are
    tens of milliseconds in which nobody is served), and the older ones seldom: as often as Python does by itself, it
    takes a twentieth of a busy process's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


def run(
    settings: Settings,
    *,
    announce: Callable[[str], None],
    is_worker: bool = False,
    store_url: str | None = None,
    shared: SharedPlaces | None = None,
) -> None:
    """`serve` on a loop of its own, the fast one where it is installed. The rest is told at `Service`."""
    keep_freed_memory()
    logs.set_up(log_format=settings.log_format, level=settings.log_level)

    async def made_on_the_loop() -> None:
        service = Service(settings, is_worker=is_worker, store_url=store_url, shared=shared)
        await serve(service, announce=announce)

    with asyncio.Runner(loop_factory=None if settings.plain else _loop_factory()) as runner:
        runner.run(made_on_the_loop())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ImportError:
        return None
    return uvloop.new_event_loop
