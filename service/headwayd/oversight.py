"""Puts together what those see who watch over this process: its metrics, and the HTTP port that tells them.

Where neither `http_listen` nor `otlp_endpoint` is set nobody asks, and there is nothing here: nothing is counted.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from headwayd.config.settings import Settings
from headwayd.config.values import is_local
from headwayd.engine.counting.counts import Counts
from headwayd.engine.engine import Engine
from headwayd.engine.tasks import Tasks
from headwayd.store.redis_store import RedisStore

if TYPE_CHECKING:
    from headwayd.http.connecting import Calls
    from headwayd.http.server import HttpServer
    from headwayd.telemetry.metrics import Metrics
    from headwayd.telemetry.otlp_metrics import OtlpMetrics

_HTTP_STOP = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class SharedPlaces:
    """The memory that workers share for their numbers, and which place is this one's."""

    places: Sequence[int]
    own: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """How the HTTP port is guarded: TLS, and who is the operator, if callers are known."""

    tls: ssl.SSLContext | None = None
    is_operator: Callable[[str], Awaitable[bool]] | None = None


_OPEN_DOORS = Doors()


class Oversight:
    """Of one process. Life: `start`; `leave_lines`; `stop_http`; `finish`."""

    def __init__(self, settings: Settings, *, process: str, is_worker: bool, shared: SharedPlaces | None) -> None:
        self._settings = settings
        self._process = process
        self._is_worker = is_worker
        self._shared = shared
        self._is_serving = self._is_ready = False
        self._metrics: Metrics | None = None
        self._http: HttpServer | None = None
        self._otlp: OtlpMetrics | None = None
        self._tasks = Tasks()
        is_asked = settings.http_listen is not None or settings.otlp_endpoint is not None
        self.counts = Counts(most_queues=settings.metrics_queues) if is_asked else None

    @property
    def most_connections(self) -> int:
        """How many the HTTP port takes; 0 if there is none."""
        settings = self._settings
        return settings.capacity(settings.workers).max_http_connections if settings.http_listen is not None else 0

    async def start(
        self,
        engine: Engine,
        store: RedisStore,
        calls: Calls,
        *,
        keeps_flood_out: Callable[[], bool],
        doors: Doors = _OPEN_DOORS,
    ) -> list[str]:
        """Begins to measure and to listen; where, if anywhere. Raises CannotListen."""
        counts, settings = self.counts, self._settings
        if counts is None:
            return []
        # All of this late, here and below: it takes a quarter of the time of a start, and few tests and developers
        # want it.
        from headwayd.engine.counting.census import Census  # noqa: PLC0415
        from headwayd.telemetry.metrics import Metrics  # noqa: PLC0415
        from headwayd.telemetry.sharing import Shared  # noqa: PLC0415

        store.on_answer(counts.note_store)
        shared = Shared(self._shared.places, own=self._shared.own) if self._shared else None
        self._metrics = metrics = Metrics(
            counts,
            Census(store, counts),
            watcher_count=lambda: engine.watcher_count,
            keeps_flood_out=keeps_flood_out,
            shared=shared,
        )
        self._tell()
        self._tasks.spawn(metrics.run(), "metrics")
        if settings.otlp_endpoint is not None:
            self._send(metrics, settings.otlp_endpoint)
        if settings.http_listen is None:
            return []
        from headwayd.http.doors import Behind  # noqa: PLC0415
        from headwayd.http.server import HttpServer  # noqa: PLC0415

        behind = Behind(
            scrape=metrics.scrape,
            is_ready=lambda: metrics.is_ready,
            calls=calls if settings.http_calls else None,
            most_bytes=settings.max_request_bytes,
            most_message_bytes=settings.max_message_bytes,
            origins=settings.http_origins,
            hosts=_hosts(settings),
            most_connections=self.most_connections,
            read_s=settings.write_timeout.total_seconds(),
            is_operator=doors.is_operator,
            has_dashboard=settings.dashboard,
            may_act=settings.dashboard_actions,
        )
        self._http = HttpServer(
            behind,
            listen=settings.http_listen,
            keepalive=settings.keepalive,
            keepalive_timeout=settings.keepalive_timeout,
            reuse_port=self._is_worker,
            tls=doors.tls,
            handshake_s=settings.handshake_timeout.total_seconds(),
        )
        return [await self._http.start()]

    def _send(self, metrics: Metrics, endpoint: str) -> None:
        from headwayd.telemetry.identity import is_disabled  # noqa: PLC0415
        from headwayd.telemetry.otlp_metrics import OtlpMetrics  # noqa: PLC0415

        if not is_disabled():
            every = self._settings.metrics_interval
            self._otlp = OtlpMetrics(metrics, endpoint=endpoint, every=every, process=self._process)
            self._tasks.spawn(self._otlp.run(), "otlp metrics")

    def set_serving(self, is_serving: bool) -> None:
        """Whether this process wants calls."""
        self._is_serving = is_serving
        self._tell()

    def set_ready(self, is_ready: bool) -> None:
        """Whether the store can be counted on."""
        self._is_ready = is_ready
        self._tell()

    def _tell(self) -> None:
        if self._metrics is not None:
            self._metrics.is_ready = self._is_serving and self._is_ready

    async def leave_lines(self) -> None:
        """Gives up the places that belong to connections of the HTTP port."""
        if self._http is not None:
            await self._http.leave_lines()

    async def stop_http(self) -> None:
        """Closes the HTTP port. Until then it tells that this process is not ready."""
        if self._http is not None:
            await self._http.stop(_HTTP_STOP)

    async def finish(self) -> None:
        """Sends the last numbers, when all is done that is counted."""
        await self._tasks.close()
        if self._otlp is not None:
            await self._otlp.close()


def _hosts(settings: Settings) -> Sequence[str] | None:
    """By which names the HTTP port may be called. With credentials it does not matter: a page has none to send."""
    assert settings.http_listen is not None
    is_open = not settings.has_auth and (is_local(settings.http_listen) or bool(settings.http_hosts))
    return settings.http_hosts if is_open else None
