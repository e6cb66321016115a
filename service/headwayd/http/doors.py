"""What the HTTP port answers.

    GET /metrics   all metrics, for Prometheus; where callers are known, for the operator only (else 401)
    GET /healthz   200 as long as this process answers; the store is never asked
    GET /readyz    200 if this process wants calls and its store can be counted on, else 503
    POST /headway.v1.QueueService/Put and all other calls with one request: see `connecting`
    /queues/QUEUE and below: jobs by verbs, and X-Queue: see `jobs`
    GET or POST /queues/QUEUE/events: see `events`
    GET /place.js, /example: see `pages`
    GET / and /dashboard/…: see `dashboard`

Anything else is 404, another method 405.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from headwayd.domain.limits import REQUEST_MARGIN_BYTES
from headwayd.http.bodies import SHARE_BYTES, Bodies, Incoming
from headwayd.http.connecting import Calls, ConnectApp
from headwayd.http.dashboard import dashboard_routes
from headwayd.http.events import event_routes
from headwayd.http.guards import Guards
from headwayd.http.jobs.doors import Jobs
from headwayd.http.pages import page_routes
from headwayd.http.shows import Shows

# What browsers may send and read beyond what they may anyway.
_SENT = (
    "authorization",
    "connect-protocol-version",
    "connect-timeout-ms",
    "content-type",
    "grpc-timeout",
    "last-event-id",
    "traceparent",
    "tracestate",
    "x-grpc-web",
    "x-queue",
    "x-user-agent",
)
_READ = (
    "grpc-message",
    "grpc-status",
    "grpc-status-details-bin",
    "headway-attempt",
    "headway-id",
    "headway-ticket",
    "location",
    "retry-after",
    "x-queue",
)
_PREFLIGHT_S = 7_200  # for which a browser need not ask again: as long as the most patient one remembers


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """What is asked behind the doors: the text of the metrics and its content type, for an `Accept` header; whether the
    process is ready now; the calls, if they are taken here, of at most so many bytes, with messages of so many, from
    pages of these origins, too, and by these names beside addresses and localhost (None: any); how many connections
    there may be at a time, and how many seconds a reader has to read on; whether the credentials of an `Authorization`
    header are the operator's, if callers are known; whether there is a dashboard, and whether those who are not known
    may act there."""

    scrape: Callable[[str], Awaitable[tuple[bytes, str]]]
    is_ready: Callable[[], bool]
    calls: Calls | None = None
    most_bytes: int = 0
    most_message_bytes: int = 0
    origins: Sequence[str] = ()
    hosts: Sequence[str] | None = None
    most_connections: int
    read_s: float
    is_operator: Callable[[str], Awaitable[bool]] | None = None
    has_dashboard: bool = False
    may_act: bool = False


@dataclass(frozen=True, slots=True)
class Application:
    """The ASGI application, and what must be closed before calls end."""

    app: Starlette
    jobs: Jobs | None
    shows: Shows

    async def close(self) -> None:
        """Gives up the places of its connections, and ends what its pages look at."""
        self.shows.close()
        if self.jobs is not None:
            await self.jobs.close()


def application(behind: Behind) -> Application:
    """Of these doors."""
    largest = _most_read(behind.most_bytes)
    incoming = Incoming(max(behind.most_connections * SHARE_BYTES - largest, behind.most_bytes))
    shows = Shows()
    jobs = None
    if behind.calls:
        most_bytes, most_message_bytes = behind.most_bytes, behind.most_message_bytes
        jobs = Jobs(behind.calls, most_bytes=most_bytes, most_message_bytes=most_message_bytes, incoming=incoming)

    async def metrics(request: Request) -> Response:
        if behind.is_operator and not await behind.is_operator(request.headers.get("authorization", "")):
            needed = {"www-authenticate": "Bearer"}
            return PlainTextResponse("the operator's credentials are needed\n", status_code=401, headers=needed)
        text, content_type = await behind.scrape(request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type})

    async def healthz(_request: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def readyz(_request: Request) -> Response:
        if behind.is_ready():
            return PlainTextResponse("ready\n")
        return PlainTextResponse("not ready\n", status_code=503)

    routes = [
        Route("/metrics", metrics, methods=["GET"]),
        Route("/healthz", healthz, methods=["GET"]),
        Route("/readyz", readyz, methods=["GET"]),
        *_calls(behind, incoming),
        *(jobs.routes if jobs else []),  # first: a message may be named "events"
        *(event_routes(behind.calls, most_bytes=behind.most_bytes, incoming=incoming) if behind.calls else []),
        *(page_routes() if behind.calls else []),
        *_dashboard(behind, shows),
    ]
    app = Starlette(routes=routes, middleware=_middleware(behind, routes))
    app.router.redirect_slashes = False  # a path that is not there is not there
    return Application(app, jobs, shows)


def _middleware(behind: Behind, routes: Sequence[BaseRoute]) -> list[Middleware]:
    guards = Middleware(Guards, routes=routes, origins=behind.origins, hosts=behind.hosts)
    if not behind.origins:
        return [guards]
    crossing = Middleware(
        CORSMiddleware,
        allow_origins=list(behind.origins),
        allow_methods=["GET", "POST", "PUT", "DELETE"],
        allow_headers=list(_SENT),
        expose_headers=list(_READ),
        max_age=_PREFLIGHT_S,
    )
    return [guards, crossing]


def _calls(behind: Behind, incoming: Incoming) -> list[Route]:
    calls = behind.calls
    if calls is None:
        return []
    most = _most_read(behind.most_bytes)
    services = sorted({method.service for method in calls.methods})
    apps = {
        service: Bodies(ConnectApp(calls, service, most_bytes=most), most_bytes=most, incoming=incoming)
        for service in services
    }
    return [Route(method.path, apps[method.service], methods=["POST"]) for method in calls.methods]


def _most_read(most_bytes: int) -> int:
    """Of a call, where its request may have `most_bytes`: JSON has bytes as base64, and what is somewhat too large is
    read, too, so that the call itself refuses it."""
    return (most_bytes + REQUEST_MARGIN_BYTES) * 4 // 3


def _dashboard(behind: Behind, shows: Shows) -> list[Route]:
    if behind.calls is None or not behind.has_dashboard:
        return []
    return dashboard_routes(behind.calls, shows, is_guarded=behind.is_operator is not None, may_act=behind.may_act)
