"""The calls at the HTTP port are the gRPC port's: the same answers and refusals, and the same end for who leaves."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import httpx
import pytest
from google.rpc import status_pb2

from harness import ServiceProcess, eventually
from headway.v1 import admin_service_pb2
from headway.v1 import queue_service_pb2 as pb
from web.callers import CODES, Caller, Told, framed
from web.conftest import ORIGIN, base_url
from wire.calls import SLACK_S, Line, Message
from wire.every_call import BOTH_WAYS, QUEUE_SERVICE, REQUESTS, WITHOUT_QUEUE, short

ANSWERS = {
    f"/{service.full_name}/{method.name}": method.output_type._concrete_class
    for file in (pb, admin_service_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
STREAMED = {QUEUE_SERVICE + "WatchPosition", QUEUE_SERVICE + "WatchQueue", "/headway.v1.AdminService/Redrive"}
PUT, GET, ACK, WATCH = (QUEUE_SERVICE + name for name in ("Put", "Get", "Ack", "WatchPosition"))
MOST = 8 * 1024 * 1024  # bytes of a request
MARGIN = 1024 * 1024  # by which a request may be larger and still be told so by the call
GONE_S = 1.0  # in which a caller's leaving takes effect; a lease would last 30 s


async def ended(caller: Caller, path: str, request: Any) -> Told | Any:
    """How a call ended, whatever its shape."""
    if path not in STREAMED:
        return await caller.call(path, request, ANSWERS[path])
    async with caller.stream(path, request, ANSWERS[path]) as stream:
        while await stream.next() is not None:
            pass
        return stream.told


async def status_by_grpc(service: ServiceProcess, path: str, request: Any) -> status_pb2.Status:
    async with grpc.aio.insecure_channel(service.address) as channel:
        raw: Any = channel.unary_stream(path) if path in STREAMED else channel.unary_unary(path)
        try:
            call = raw(request.SerializeToString(), timeout=SLACK_S)
            await (call.read() if path in STREAMED else call)
        except grpc.aio.AioRpcError as error:
            trailers = dict(error.trailing_metadata() or ())
            packed: Any = trailers["grpc-status-details-bin"]
            return status_pb2.Status.FromString(packed)
    return status_pb2.Status()


@pytest.mark.parametrize("queue", ["nowhere", "bad\nname"], ids=["unknown", "improper"])
@pytest.mark.parametrize("path", [each for each in REQUESTS if short(each) != "Create"], ids=short)
async def test_every_call_is_refused_as_by_grpc(
    web_service: ServiceProcess, caller: Caller, path: str, queue: str
) -> None:
    request = REQUESTS[path](queue)
    expected = await status_by_grpc(web_service, path, request)
    told = await ended(caller, path, request)
    if expected.code == 0:  # of leases of a queue that is not there each is told by itself
        assert isinstance(told, ANSWERS[path])
        return
    assert isinstance(told, Told)
    assert (told.code, told.text) == (expected.code, expected.message)
    assert told.details == [(each.type_url.rpartition("/")[2], each.value) for each in expected.details]


@pytest.mark.parametrize("path", sorted(WITHOUT_QUEUE), ids=short)
async def test_calls_without_a_queue_are_answered(caller: Caller, path: str) -> None:
    request = pb.ListRequest() if short(path) == "List" else admin_service_pb2.GetServerInfoRequest()
    assert isinstance(await caller.call(path, request, ANSWERS[path]), ANSWERS[path])


@pytest.mark.parametrize("path", sorted(BOTH_WAYS), ids=short)
async def test_calls_that_stream_both_ways_are_not_there(http: httpx.AsyncClient, path: str) -> None:
    response = await http.post(path, content=b"{}", headers={"content-type": "application/json"})
    assert response.status_code == httpx.codes.NOT_FOUND


async def test_a_job_is_put_got_and_acked(caller: Caller, line: Line) -> None:
    put = pb.PutRequest(queue=line.name, messages=[Message(id="ä", payload=b"\x00\xff", headers={"k": "v"})])
    results = (await caller.call(PUT, put, pb.PutResponse)).results
    assert [(each.id, each.position) for each in results] == [("ä", 1)]
    (delivery,) = (await caller.call(GET, pb.GetRequest(queue=line.name), pb.GetResponse)).deliveries
    assert (delivery.message.payload, delivery.message.headers["k"]) == (b"\x00\xff", "v")
    ack = await caller.call(ACK, pb.AckRequest(queue=line.name, leases=[delivery.lease]), pb.AckResponse)
    assert [each.lease for each in ack.results] == [delivery.lease]
    assert (await line.counts()).acked == 1


async def test_a_watch_tells_places_and_the_end(caller: Caller, line: Line) -> None:
    await line.put(Message(id="one"))
    request = pb.WatchPositionRequest(queue=line.name, messages=pb.MessageIds(ids=["one"]))
    async with caller.stream(WATCH, request, pb.WatchPositionResponse) as stream:
        assert (await stream.next()).position.position == 1
        delivery = await line.take_one()
        while (reply := await stream.next()).WhichOneof("event") != "leased":
            assert reply is not None
        await line.ack(delivery.lease, result=b"done")
        while (reply := await stream.next()).WhichOneof("event") != "finished":
            assert reply is not None
        assert reply.finished.result == b"done"
        assert await stream.next() is None
        assert stream.told == Told()


async def test_who_leaves_an_attended_watch_withdraws_what_waits(caller: Caller, line: Line) -> None:
    await line.put(Message(id="one"))
    request = pb.WatchPositionRequest(queue=line.name, messages=pb.MessageIds(ids=["one"], attended=True))
    async with caller.stream(WATCH, request, pb.WatchPositionResponse) as stream:
        assert (await stream.next()).position.position == 1
        assert (await line.counts()).length == 1

    async def is_withdrawn() -> bool:
        return (await line.counts()).length == 0

    await eventually(is_withdrawn, within=GONE_S + 4)


async def test_who_leaves_a_stand_gives_back_its_lease_and_its_place(caller: Caller, line: Line) -> None:
    request = pb.WatchPositionRequest(queue=line.name, stand=pb.Stand(consumer="page"))
    async with caller.stream(WATCH, request, pb.WatchPositionResponse) as stream:
        assert (await stream.next()).position.position == 1
        await line.put(b"job")
        while (await stream.next()).WhichOneof("event") != "granted":
            pass
        assert (await line.counts()).leased == 1
    delivery = await line.take_one(wait_ms=5_000)
    assert (delivery.message.payload, delivery.attempt) == (b"job", 1)


async def test_who_leaves_a_waiting_get_leaves_the_line(http: httpx.AsyncClient, line: Line) -> None:
    body = json.dumps({"queue": line.name, "wait": "30s"})
    waiting = asyncio.ensure_future(http.post(GET, content=body, headers={"content-type": "application/json"}))

    async def waits() -> int:
        return (await line.counts()).consumers_waiting

    await eventually(waits, within=5)
    waiting.cancel()

    async def has_left() -> bool:
        return not await waits()

    await eventually(has_left, within=GONE_S + 4)


async def test_a_deadline_ends_a_wait_just_before_it_as_by_grpc(http: httpx.AsyncClient, line: Line) -> None:
    body = json.dumps({"queue": line.name, "wait": "30s"})
    headers = {"content-type": "application/json", "connect-timeout-ms": "300"}
    response = await http.post(GET, content=body, headers=headers)
    assert (response.status_code, response.text) == (httpx.codes.OK, "{}")
    assert not (await line.counts()).consumers_waiting


async def test_a_deadline_that_has_passed_ends_a_stream(caller: Caller, line: Line) -> None:
    await line.put(Message(id="one"))
    request = pb.WatchPositionRequest(queue=line.name, messages=pb.MessageIds(ids=["one"]))
    headers = {"connect-timeout-ms": "300", "grpc-timeout": "300m"}
    async with caller.stream(WATCH, request, pb.WatchPositionResponse, headers) as stream:
        while await stream.next() is not None:
            pass
        assert stream.told is not None
        assert CODES[stream.told.code] == "deadline_exceeded"


async def test_a_full_queue_tells_when_to_come_back(caller: Caller, line: Line) -> None:
    await line.update(bound=1)
    await line.put(b"first")
    told = await caller.call(PUT, pb.PutRequest(queue=line.name, messages=[Message()]), pb.PutResponse)
    assert CODES[told.code] == "resource_exhausted"
    assert "RetryInfo" in told.reasons
    assert "QUEUE_FULL" in told.reasons


# -- what is no call --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"quue": "x"}', b'{"queue": 7}', b"\xff", b"[" * 10_000], ids=lambda each: repr(each[:9])
)
async def test_what_is_no_json_of_the_request_is_refused(http: httpx.AsyncClient, body: bytes) -> None:
    response = await http.post(GET, content=body, headers={"content-type": "application/json"})
    assert response.status_code == httpx.codes.BAD_REQUEST
    assert response.json()["code"] == "invalid_argument"
    assert "google.rpc.BadRequest" in response.text


async def test_an_empty_body_is_an_empty_request(http: httpx.AsyncClient) -> None:
    response = await http.post(QUEUE_SERVICE + "List", headers={"content-type": "application/json"})
    assert response.status_code == httpx.codes.OK


async def test_bytes_that_are_no_request_are_refused(http: httpx.AsyncClient) -> None:
    response = await http.post(GET, content=b"\x0a\xff", headers={"content-type": "application/proto"})
    assert response.json()["code"] == "invalid_argument"


@pytest.mark.parametrize(
    ("method", "path", "kind", "status"),
    [
        ("GET", GET, "application/json", 405),
        ("PUT", GET, "application/json", 405),
        ("POST", GET, "text/plain", 415),
        ("POST", "/headway.v1.QueueService/Nothing", "application/json", 404),
        ("POST", "/grpc.health.v1.Health/Check", "application/json", 404),
    ],
)
async def test_what_is_no_call_has_its_status(
    http: httpx.AsyncClient, method: str, path: str, kind: str, status: int
) -> None:
    response = await http.request(method, path, content=b"{}", headers={"content-type": kind})
    assert response.status_code == status


def put_of(line: Line, size: int) -> pb.PutRequest:
    """A request of so many bytes, in messages that are small enough."""
    count = size // (MARGIN // 2) + 1
    request = pb.PutRequest(queue=line.name, messages=[Message(payload=bytes(size // count - 100))] * count)
    request.messages[0].payload += bytes(size - request.ByteSize())
    assert request.ByteSize() == size
    return request


async def test_as_much_as_a_request_may_have_is_taken_in_any_format(caller: Caller, line: Line) -> None:
    request = put_of(line, MOST)
    assert isinstance(await caller.call(PUT, request, pb.PutResponse), pb.PutResponse)
    assert (await line.counts()).length == len(request.messages)


@pytest.mark.parametrize("more", [1, MARGIN // 2])
async def test_a_request_that_is_too_large_is_refused_as_by_grpc(
    web_service: ServiceProcess, caller: Caller, line: Line, more: int
) -> None:
    request = put_of(line, MOST + more)
    expected = await status_by_grpc(web_service, PUT, request)
    told = await caller.call(PUT, request, pb.PutResponse)
    assert (told.code, told.text) == (expected.code, expected.message)
    assert told.details == [(each.type_url.rpartition("/")[2], each.value) for each in expected.details]
    assert "TOO_LARGE" in told.reasons
    assert (await line.counts()).length == 0


async def chunked(content: bytes) -> AsyncIterator[bytes]:
    for begin in range(0, len(content), MARGIN):
        yield content[begin : begin + MARGIN]


async def test_a_request_that_is_too_large_is_told_so_however_it_comes(http: httpx.AsyncClient, line: Line) -> None:
    headers, content = {"content-type": "application/proto"}, put_of(line, MOST + 1).SerializeToString()
    answers = [
        await http.post(PUT, content=chunked(content), headers=headers),
        await http.post(PUT, content=gzip.compress(content), headers=headers | {"content-encoding": "gzip"}),
    ]
    for answer in answers:
        assert (answer.status_code, answer.json()["message"][:11]) == (400, "the request")
        assert "google.rpc.BadRequest" in answer.text


async def test_json_of_very_many_parts_is_refused_unread(http: httpx.AsyncClient, line: Line) -> None:
    headers = {"content-type": "application/json"}
    content = b'{"queue": "%s", "messages": [%s{}]}' % (line.name.encode(), b"{}," * 150_000)
    answer = await http.post(PUT, content=content, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")
    assert answer.json()["message"].startswith("request has 300004 objects, lists and commas, at most 200000")
    assert "google.rpc.BadRequest" in answer.text


async def test_a_body_that_is_far_too_large_is_refused_while_it_comes(http: httpx.AsyncClient, line: Line) -> None:
    headers, content = {"content-type": "application/proto"}, put_of(line, 2 * MOST).SerializeToString()
    answer = await http.post(PUT, content=content, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (413, "invalid_argument")
    answer = await http.post(PUT, content=chunked(content), headers=headers)
    assert answer.json()["code"] == "resource_exhausted"
    assert (await line.counts()).length == 0


async def test_half_a_frame_is_refused(http: httpx.AsyncClient, line: Line) -> None:
    request = pb.WatchPositionRequest(queue=line.name, messages=pb.MessageIds(ids=["one"]))
    half = framed(request.SerializeToString())[:-2]
    response = await http.post(WATCH, content=half, headers={"content-type": "application/connect+proto"})
    assert b"invalid_argument" in response.content


# -- pages of other sites ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("origin", "may"), [(ORIGIN, True), ("https://evil.example", False)])
async def test_only_pages_of_known_sites_may_call(http: httpx.AsyncClient, origin: str, *, may: bool) -> None:
    asked = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type,connect-protocol-version",
    }
    response = await http.options(GET, headers=asked)
    assert (response.headers.get("access-control-allow-origin") == origin) is may
    answer = await http.post(
        QUEUE_SERVICE + "List", content=b"{}", headers={"content-type": "application/json", "origin": origin}
    )
    assert (answer.headers.get("access-control-allow-origin") == origin) is may


# -- the service's own life -------------------------------------------------------------------------------------------


async def test_calls_can_be_kept_off_the_port(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service(HEADWAY_HTTP_LISTEN="127.0.0.1:0", HEADWAY_HTTP_CALLS="false")
    async with httpx.AsyncClient(base_url=base_url(service), timeout=SLACK_S) as http:
        assert (await http.get("/healthz")).status_code == httpx.codes.OK
        response = await http.post(GET, content=b"{}", headers={"content-type": "application/json"})
        assert response.status_code == httpx.codes.NOT_FOUND


async def test_a_service_that_goes_down_ends_streams_in_good_order(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service(HEADWAY_HTTP_LISTEN="127.0.0.1:0")
    async with httpx.AsyncClient(base_url=base_url(service), timeout=SLACK_S) as http:
        caller = Caller(http, "json")
        create = pb.CreateRequest(queue="q")
        await caller.call(QUEUE_SERVICE + "Create", create, pb.CreateResponse)
        await caller.call(PUT, pb.PutRequest(queue="q", messages=[Message(id="one")]), pb.PutResponse)
        request = pb.WatchPositionRequest(queue="q", messages=pb.MessageIds(ids=["one"]))
        async with caller.stream(WATCH, request, pb.WatchPositionResponse) as stream:
            assert await stream.next() is not None
            stopping = asyncio.ensure_future(asyncio.to_thread(service.stop))
            while await stream.next() is not None:
                pass
            assert stream.told is not None
            assert CODES[stream.told.code] == "unavailable"
            assert "SHUTTING_DOWN" in stream.told.reasons
        assert await stopping == 0


@pytest.mark.long
async def test_a_body_that_does_not_come_ends_its_connection(web_service: ServiceProcess) -> None:
    host, _, port = base_url(web_service).removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {GET} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 20\r\n\r\n{{"
    writer.write(head.encode())
    async with asyncio.timeout(30):
        while await reader.read(1000):
            pass
    writer.close()
