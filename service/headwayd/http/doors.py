"""What the HTTP port answers.

    GET /metrics   all metrics, for Prometheus
    GET /healthz   200 as long as this process answers; the store is never asked
    GET /readyz    200 if this process wants calls and its store can be counted on, else 503

Anything else is 404, another method 405. Bodies of requests are not read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route


@dataclass(frozen=True, slots=True)
class Behind:
    """What is asked behind the doors: the text of the metrics and its content type, for an `Accept` header; and whether
    the process is ready now."""

    scrape: Callable[[str], Awaitable[tuple[bytes, str]]]
    is_ready: Callable[[], bool]


def app_of(behind: Behind) -> Starlette:
    """The ASGI application."""

    async def metrics(request: Request) -> Response:
        text, content_type = await behind.scrape(request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type})

    async def healthz(_request: Request) -> Response:
        return PlainTextResponse("alive\n")

    async def readyz(_request: Request) -> Response:
        if behind.is_ready():
            return PlainTextResponse("ready\n")
        return PlainTextResponse("not ready\n", status_code=503)

    return Starlette(
        routes=[
            Route("/metrics", metrics, methods=["GET"]),
            Route("/healthz", healthz, methods=["GET"]),
            Route("/readyz", readyz, methods=["GET"]),
        ]
    )
