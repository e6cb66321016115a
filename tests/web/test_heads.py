"""What the heads of requests ask for: compressed answers, deadlines, protocols that HTTP/1.1 cannot carry, and much."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from collections.abc import Callable

import httpx
import pytest

from harness import ServiceProcess, eventually
from headway.v1 import queue_service_pb2 as pb
from web.callers import CODES, Caller, framed
from web.conftest import base_url
from wire.calls import Line, Message
from wire.every_call import QUEUE_SERVICE

DESCRIBE, PEEK, WATCH = (QUEUE_SERVICE + name for name in ("Describe", "Peek", "WatchPosition"))
JSON = {"content-type": "application/json"}


def host_of(service: ServiceProcess) -> tuple[str, int]:
    host, _, port = base_url(service).removeprefix("http://").rpartition(":")
    return host, int(port)


async def test_answers_are_never_compressed(http: httpx.AsyncClient, line: Line) -> None:
    """Packing one of some megabytes held up everybody's calls for a second, and every browser asks for it."""
    await line.put(bytes(100_000))
    for kind in ("json", "proto"):
        asking = {"accept-encoding": "gzip, deflate, br", "content-type": f"application/{kind}"}
        body = f'{{"queue": "{line.name}"}}'.encode() if kind == "json" else pb.PeekRequest(queue=line.name)
        content = body if isinstance(body, bytes) else body.SerializeToString()
        async with http.stream("POST", PEEK, content=content, headers=asking) as answer:
            raw = b"".join([chunk async for chunk in answer.aiter_raw()])
        assert answer.headers.get("content-encoding", "identity") == "identity"
        assert len(raw) > 100_000
    for kind, asking_header in (("connect", "connect-accept-encoding"), ("grpc-web", "grpc-accept-encoding")):
        headers = {"content-type": f"application/{kind}+proto", asking_header: "gzip"}
        watch = pb.WatchPositionRequest(queue=line.name, messages=pb.MessageIds(ids=["never"])).SerializeToString()
        answer = await http.post(WATCH, content=framed(watch), headers=headers)
        assert answer.content[0] == 0  # the flags of its first frame


async def test_requests_may_be_compressed_and_only_by_what_is_known(http: httpx.AsyncClient, line: Line) -> None:
    body = f'{{"queue": "{line.name}"}}'.encode()
    packed = await http.post(DESCRIBE, content=gzip.compress(body), headers=JSON | {"content-encoding": "gzip"})
    assert packed.json()["queue"]["name"] == line.name
    unpacked = await http.post(DESCRIBE, content=body, headers=JSON | {"content-encoding": "gzip"})
    assert unpacked.json()["code"] == "invalid_argument"
    unknown = await http.post(DESCRIBE, content=body, headers=JSON | {"content-encoding": "br"})
    assert unknown.json()["code"] == "unimplemented"


async def test_little_that_unpacks_to_much_is_refused(http: httpx.AsyncClient) -> None:
    bomb = gzip.compress(bytes(100_000_000))
    refused = await http.post(DESCRIBE, content=bomb, headers=JSON | {"content-encoding": "gzip"})
    assert refused.json()["code"] == "resource_exhausted"


async def test_gzip_in_many_members_is_refused_at_the_first(http: httpx.AsyncClient) -> None:
    """Each but the first was looked at behind a copy of all that is left: this body held up the process for minutes,
    before anybody was asked who he is."""
    members = gzip.compress(b"", mtime=0) * 400_000
    whole = await http.post(DESCRIBE, content=members, headers=JSON | {"content-encoding": "gzip"}, timeout=20)
    assert "one whole member of gzip" in whole.json()["message"]
    headers = {"content-type": "application/connect+json", "connect-content-encoding": "gzip"}
    stream = await http.post(WATCH, content=framed(members, flags=1), headers=headers, timeout=20)
    assert b"one whole member of gzip" in stream.content


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "ok"),
        ({"connect-timeout-ms": "9999999999"}, "ok"),
        ({"connect-timeout-ms": "0"}, "deadline_exceeded"),
        ({"connect-timeout-ms": "-1"}, "invalid_argument"),
        ({"connect-timeout-ms": "1s"}, "invalid_argument"),
        ({"connect-timeout-ms": "10000000000"}, "invalid_argument"),  # more digits than Connect has
        ({"grpc-timeout": "99999999H"}, "ok"),
        ({"grpc-timeout": "0n"}, "deadline_exceeded"),
    ],
    ids=str,
)
async def test_deadlines_are_what_their_protocol_allows(
    http: httpx.AsyncClient, line: Line, headers: dict[str, str], code: str
) -> None:
    request = pb.DescribeRequest(queue=line.name)
    kind = "grpc-web" if "grpc-timeout" in headers else "json"
    told = await Caller(http, kind).call(DESCRIBE, request, pb.DescribeResponse, headers)
    assert (CODES[told.code] if hasattr(told, "code") else "ok") == code


@pytest.mark.parametrize("timeout", ["1", "100000000m", "-1S"])
async def test_a_deadline_that_is_none_is_refused(http: httpx.AsyncClient, timeout: str) -> None:
    headers = {"content-type": "application/grpc-web+proto", "grpc-timeout": timeout}
    answer = await http.post(DESCRIBE, content=framed(b""), headers=headers)
    assert CODES[int(answer.headers["grpc-status"])] == "invalid_argument"


@pytest.mark.parametrize("kind", ["application/grpc", "application/grpc+proto", "application/grpc-web-text"])
async def test_what_http_1_cannot_carry_is_415(http: httpx.AsyncClient, kind: str) -> None:
    answer = await http.post(DESCRIBE, content=framed(b""), headers={"content-type": kind})
    assert answer.status_code == httpx.codes.UNSUPPORTED_MEDIA_TYPE


async def test_a_header_that_is_no_text_is_passed_over(http: httpx.AsyncClient, line: Line) -> None:
    """A cookie of another service on the same host, say."""
    headers: dict[str, str | bytes] = {**JSON, "cookie": b"name=\xfc"}
    answer = await http.post(DESCRIBE, content=f'{{"queue": "{line.name}"}}', headers=headers)  # type: ignore[arg-type]
    assert answer.status_code == httpx.codes.OK


async def test_who_does_not_read_loses_the_stream_and_what_it_leased(
    make_service: Callable[..., ServiceProcess],
) -> None:
    service = make_service(
        HEADWAY_HTTP_LISTEN="127.0.0.1:0", HEADWAY_WRITE_TIMEOUT="1s", HEADWAY_MAX_RESPONSE_BYTES=f"{16 << 20}"
    )
    async with httpx.AsyncClient(base_url=base_url(service), timeout=10) as client:
        caller = Caller(client, "proto")
        await caller.call(QUEUE_SERVICE + "Create", pb.CreateRequest(queue="q"), pb.CreateResponse)
        for _ in range(12):  # more than the kernel keeps for one who does not read
            put = pb.PutRequest(queue="q", messages=[Message(payload=bytes(900_000))])
            await caller.call(QUEUE_SERVICE + "Put", put, pb.PutResponse)
        stand = json.dumps({"queue": "q", "stand": {"maxMessages": 12}}).encode()
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            deaf.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(deaf, host_of(service))
            body = framed(stand)
            head = f"POST {WATCH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/connect+json\r\n"
            await loop.sock_sendall(deaf, f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)

            async def leased() -> int:
                request = pb.DescribeRequest(queue="q")
                answer = await caller.call(DESCRIBE, request, pb.DescribeResponse)
                assert isinstance(answer, pb.DescribeResponse)  # a busy machine may refuse: asked again
                return int(answer.queue.counts.leased)

            await eventually(leased, within=10)

            async def is_given_back() -> bool:
                return not await leased()

            await eventually(is_given_back, within=20)
