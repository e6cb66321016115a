"""What browsers load: the files of `static`, as they are, with nothing from elsewhere.

GET /place.js      <headway-place>, for pages of any site that `http_origins` names
GET /example       a page that submits a job and watches it
"""

from __future__ import annotations

import gzip
import hashlib
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from headwayd.http.guards import Page

TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# A page runs what came with the service and talks to it only, whatever text is put into it.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src %s;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PATHS = {
    "/place.js": "place.js",
    "/pages.css": "pages.css",
    "/example": "example.html",
    "/example.js": "example.js",
    "/example.css": "example.css",
}


def page_routes() -> list[Page]:
    """The files of the element and of its example."""
    return [file_route(path, name, images="'self' data:") for path, name in _PATHS.items()]


def file_route(path: str, name: str, *, images: str = "'self'") -> Page:
    """Serves this file of `static` there; as a page it shows images from `images`. Browsers keep it, and ask each time
    whether it is still the same."""
    content = files("headwayd.http").joinpath("static", name).read_bytes()
    packed = gzip.compress(content, mtime=0)
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {
        "cache-control": "no-cache",
        "content-security-policy": _POLICY % images,
        "content-type": TYPES[name.rpartition(".")[2]],
        "etag": tag,
        "referrer-policy": "no-referrer",
        "vary": "accept-encoding",
        "x-content-type-options": "nosniff",
    }

    async def file(request: Request) -> Response:
        if tag in request.headers.get("if-none-match", ""):
            return Response(
                status_code=304, headers={name: headers[name] for name in ("cache-control", "etag", "vary")}
            )
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(packed, headers={**headers, "content-encoding": "gzip"})
        return Response(content, headers=headers)

    return Page(path, file, methods=["GET"])
