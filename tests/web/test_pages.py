"""The files that browsers load: small, kept by browsers, and nothing in them from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import pytest

from harness import ServiceProcess
from web.conftest import base_url
from wire.calls import SLACK_S

PATHS = ("/place.js", "/pages.css", "/example", "/example.js", "/example.css")
ELEMENT_BYTES = 8_000  # as it is sent


@pytest.mark.parametrize("path", PATHS)
async def test_a_file_allows_nothing_from_elsewhere_and_has_nothing(http: httpx.AsyncClient, path: str) -> None:
    response = await http.get(path)
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';")
    assert "unsafe" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    assert re.findall(r"https?://\S+|<script>|<style|\sstyle=|\son\w+=", response.text) == []


@pytest.mark.parametrize("path", PATHS)
async def test_a_file_that_is_the_same_is_not_sent_again(http: httpx.AsyncClient, path: str) -> None:
    first = await http.get(path)
    again = await http.get(path, headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (httpx.codes.NOT_MODIFIED, b"")
    other = await http.get(path, headers={"if-none-match": '"other"'})
    assert other.content == first.content


async def test_the_element_is_a_few_kilobytes_and_the_same_for_who_knows_no_gzip(http: httpx.AsyncClient) -> None:
    packed = await http.get("/place.js", headers={"accept-encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < ELEMENT_BYTES
    plain = await http.get("/place.js", headers={"accept-encoding": "identity"})
    assert plain.text == packed.text
    assert "content-encoding" not in plain.headers


async def test_where_calls_are_kept_off_the_port_there_are_no_pages(
    make_service: Callable[..., ServiceProcess],
) -> None:
    service = make_service(HEADWAY_HTTP_LISTEN="127.0.0.1:0", HEADWAY_HTTP_CALLS="false")
    async with httpx.AsyncClient(base_url=base_url(service), timeout=SLACK_S) as http:
        for path in (*PATHS, "/queues/q/events?id=one"):
            assert (await http.get(path)).status_code == httpx.codes.NOT_FOUND
