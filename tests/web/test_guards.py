"""Who may ask at the HTTP port: no page of another site, and nobody who was led here under a false name."""

from __future__ import annotations

import httpx
import pytest

from web.conftest import ORIGIN
from wire.calls import Line
from wire.every_call import QUEUE_SERVICE

GET = QUEUE_SERVICE + "Get"
JSON = {"content-type": "application/json"}
BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


async def get(http: httpx.AsyncClient, line: Line, headers: dict[str, str]) -> httpx.Response:
    """Asks for a job."""
    return await http.post(GET, json={"queue": line.name}, headers=headers)


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "SAME-ORIGIN"},
        {"sec-fetch-site": ""},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1"},  # another port is another site
        {"origin": "http://[::1"},
        {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
        {"origin": f"{ORIGIN}.evil.example", "sec-fetch-site": "cross-site"},
    ],
    ids=repr,
)
async def test_a_page_of_another_site_is_refused_and_takes_nothing(
    http: httpx.AsyncClient, line: Line, headers: dict[str, str]
) -> None:
    await line.put(b"job")
    answer = await get(http, line, headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    assert (await line.counts()).length == 1
    assert (await http.get("/metrics", headers=headers)).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
        {"origin": ORIGIN},
        {"origin": ORIGIN.upper(), "sec-fetch-site": "cross-site"},
        {"origin": "the own"},
        {"origin": "the own over TLS"},  # of a proxy that ends it
    ],
    ids=repr,
)
async def test_its_own_pages_those_of_named_sites_and_what_is_no_browser_may_call(
    http: httpx.AsyncClient, line: Line, headers: dict[str, str]
) -> None:
    own = {"the own": str(http.base_url), "the own over TLS": str(http.base_url).replace("http:", "https:")}
    sent = {name: own.get(value, value) for name, value in headers.items()}
    assert (await get(http, line, sent)).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"user-agent": BROWSER}, 403),  # as for an image of any page, to plain HTTP beyond the browser's machine
        ({"user-agent": BROWSER, "authorization": "Basic YTpi"}, 403),  # a browser brings it along unasked
        ({"user-agent": BROWSER, "sec-fetch-site": "same-origin"}, 200),
        ({"user-agent": BROWSER, "origin": ORIGIN}, 200),
        ({"user-agent": BROWSER, "authorization": "Bearer x"}, 200),
        ({"user-agent": BROWSER, "x-queue": "0.1"}, 200),
        ({"user-agent": "curl/8.16.0"}, 200),
        ({"user-agent": ""}, 200),
    ],
    ids=repr,
)
async def test_a_browser_that_does_not_say_whose_page_asks_takes_nothing_by_a_get(
    http: httpx.AsyncClient, line: Line, headers: dict[str, str], status: int
) -> None:
    await line.put(b"job")
    answer = await http.get(f"/queues/{line.name}/messages?count=1000", headers=headers)
    assert answer.status_code == status, answer.text
    assert (await line.counts()).leased == (1 if status == 200 else 0)
    assert (await http.get("/healthz", headers=headers)).status_code == 200


async def test_named_sites_are_told_that_they_may_use_all_methods_and_headers_of_the_doors(
    http: httpx.AsyncClient,
) -> None:
    for method in ("GET", "POST", "PUT", "DELETE"):
        asked = {
            "origin": ORIGIN,
            "sec-fetch-site": "cross-site",
            "access-control-request-method": method,
            "access-control-request-headers": "authorization,content-type,x-queue",
        }
        answer = await http.options(GET, headers=asked)
        assert answer.status_code == 200, method
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert method in answer.headers["access-control-allow-methods"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:7421", 200),
        ("localhost.", 200),
        ("127.0.0.1", 200),
        ("127.0.0.1:80", 200),
        ("192.0.2.7:7421", 200),  # no name leads astray who gives an address
        ("[::1]", 200),
        ("[::1]:7421", 200),
        ("jobs.internal", 200),
        ("evil.example", 421),
        ("evil.example:7421", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("[::1].evil.example", 421),
        ("", 421),
        (":80", 421),
        ("localhost:evil", 421),
    ],
)
async def test_where_callers_are_not_known_only_names_that_are_known_lead_here(
    http: httpx.AsyncClient, host: str, status: int
) -> None:
    assert (await http.get("/healthz", headers={"host": host})).status_code == status
