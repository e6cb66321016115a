"""The conformance driver of Python: does what the lines on stdin ask, by `headway` or, with `core`, by its core."""

import asyncio
import base64
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message as AnyMessage
from google.protobuf.message_factory import GetMessageClass
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import headway
from headway._batch import make_message
from headway._duplex import Duplex
from headway._places import read_update
from headway.core import Connection, Worker, watch
from headway.core.connecting import span
from headway.core.error import from_rpc_error
from headway.core.leasing import Lease
from headway.core.trace import context_of, traced
from headway.v1 import admin_service_pb2, queue_service_pb2
from headway.v1.message_pb2 import Message, PutResult

Json = dict[str, Any]
_SERVICES = {
    file.name: file
    for described in (queue_service_pb2.DESCRIPTOR, admin_service_pb2.DESCRIPTOR)
    for file in described.services_by_name.values()
}
_PATIENCE_S = 60  # of a call that the layer does not make
_LINE_BYTES = 256 * 1024 * 1024
_W3C = TraceContextTextMapPropagator()


class CoreQueue:
    """What the driver asks of a queue, by the core alone."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._name = name

    async def put_many(self, messages: list[Message], *, wait: timedelta | None) -> Sequence[PutResult]:
        made = [traced(message) for message in messages]
        request = queue_service_pb2.PutRequest(queue=self._name, messages=made, wait=span(wait))
        return (await self._connection.call(self._connection.queues.Put, request)).results

    @asynccontextmanager
    async def lease(self, *, wait: timedelta | None, lease: timedelta | None) -> AsyncIterator[Lease | None]:
        found = await Lease.get(self._connection, self._name, wait=wait, lease=lease)
        if found is None:
            yield None
        else:
            async with found.held():
                yield found

    async def run(
        self,
        handler: Callable[[Lease], Awaitable[bytes]],
        *,
        concurrency: int,
        lease: timedelta | None,
        stop: asyncio.Event,
    ) -> None:
        worker = Worker(self._connection, self._name, handler, concurrency=concurrency, lease=lease, stop=stop)
        await worker.run()

    async def watch(self, *ids: str, attended: bool) -> AsyncGenerator[headway.Update, None]:
        async with aclosing(watch(self._connection, self._name, ids, attended=attended)) as answers:
            async for answer in answers:
                if (update := read_update(answer, None)) is not None:
                    yield update


class CoreClient:
    """What the driver asks of a client, by the core alone."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def queue(self, name: str) -> CoreQueue:
        return CoreQueue(self.connection, name)

    async def close(self) -> None:
        await self.connection.close()


class Bearer(grpc.AuthMetadataPlugin):
    """What gives each call its token, as gRPC has it."""

    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    def __call__(self, _: grpc.AuthMetadataContext, tell: grpc.AuthMetadataPluginCallback) -> None:
        tell((("authorization", f"Bearer {self._token()}"),), None)


Client = headway.Client | CoreClient
Queue = headway.Queue | CoreQueue


class Failed(Exception):
    """What a handler, or a lease's block, raises when it is told to fail."""


class Reading:
    """Reads a stream message by message; what comes after a time-out is kept for the next time."""

    def __init__(self, read: Callable[[], Awaitable[Json]]) -> None:
        self._read = read
        self._task: asyncio.Task[Json] | None = None

    async def next(self, timeout_ms: float) -> Json:
        if self._task is None:
            self._task = asyncio.ensure_future(self._read())
        done, _ = await asyncio.wait({self._task}, timeout=timeout_ms / 1000)
        if not done:
            return {"timeout": True}
        task, self._task = self._task, None
        return task.result()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})


class Stream:
    """A call that streams, as the generated stub has it; its errors are the layer's."""

    def __init__(self, call: Any, request_class: type[AnyMessage], *, is_duplex: bool) -> None:
        self.call = Duplex(call) if is_duplex else call
        self.request_class = request_class
        self._answers = None if is_duplex else aiter(call)
        self.reading = Reading(self._read)

    async def _read(self) -> Json:
        if self._answers is None:
            answer = await self.call.read()
        else:
            try:
                answer = await anext(self._answers, None)
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error) from error
        return {"end": True} if answer is None else {"response": MessageToDict(answer)}

    async def close(self) -> None:
        self.call.cancel()
        await self.reading.stop()


class Held:
    """A lease's block, open until it is told how to end."""

    def __init__(self, queue: Queue, request: Json) -> None:
        loop = asyncio.get_running_loop()
        self.entered: asyncio.Future[Lease | None] = loop.create_future()
        self.end: asyncio.Future[Json] = loop.create_future()
        self.task = asyncio.create_task(self._hold(queue, request))

    async def _hold(self, queue: Queue, request: Json) -> None:
        try:
            async with queue.lease(wait=_span(request, "wait_ms"), lease=_span(request, "lease_ms")) as lease:
                self.entered.set_result(lease)
                if lease is not None:
                    end = await self.end
                    if end["how"] == "fail":
                        raise Failed
                    if end.get("result") is not None:
                        await lease.ack(base64.b64decode(end["result"]))
        except headway.HeadwayError as error:
            if self.entered.done():
                raise
            self.entered.set_exception(error)
        except Failed:
            pass

    @property
    def lease(self) -> Lease:
        lease = self.entered.result()
        assert lease is not None
        return lease

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})


class Working:
    """A worker loop, whose handlers wait until they are told how to end."""

    def __init__(self, name: str, queue: Queue, request: Json) -> None:
        self.name = name
        self.stop = asyncio.Event()
        self.handling: dict[str, asyncio.Future[Json]] = {}
        self._count = 0
        concurrency, lease = request["concurrency"], _span(request, "lease_ms")
        self.task = asyncio.create_task(queue.run(self._handle, concurrency=concurrency, lease=lease, stop=self.stop))
        self.task.add_done_callback(self._tell_end)

    async def _handle(self, lease: Lease) -> bytes:
        self._count += 1
        name = f"{self.name}/{self._count}"
        told = self.handling[name] = asyncio.get_running_loop().create_future()
        _tell({"event": "handling", "handle": self.name, "lease": name} | _told(lease))
        try:
            end = await told
        except asyncio.CancelledError:
            _tell({"event": "cancelled", "handle": self.name, "lease": name})
            raise
        if end["how"] == "fail":
            raise Failed(end.get("reason", ""))
        return base64.b64decode(end.get("result") or "")

    def _tell_end(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        _tell({"event": "ended", "handle": self.name, "error": error and _error(error)})

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})


class Watching:
    """A watch of the layer."""

    def __init__(self, updates: AsyncIterator[headway.Update]) -> None:
        self._updates = updates
        self.reading = Reading(self._read)

    async def _read(self) -> Json:
        update = await anext(self._updates, None)
        return {"end": True} if update is None else {"event": _event(update)}

    async def close(self) -> None:
        await self.reading.stop()
        await self._updates.aclose()  # type: ignore[attr-defined]


class Driver:
    """Every operation is the method of its name."""

    def __init__(self, *, is_core: bool) -> None:
        self._is_core = is_core
        self._clients: dict[str, Client] = {}
        self._handles: dict[tuple[str, str], Any] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def serve(self) -> None:
        lines = asyncio.StreamReader(limit=_LINE_BYTES)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        while line := await lines.readline():
            request = json.loads(line)
            self._tasks[request["id"]] = asyncio.create_task(self._answer(request))
        for name in list(self._clients):
            await self.disconnect({"client": name})

    async def _answer(self, request: Json) -> None:
        try:
            done = await getattr(self, request["op"])(request)
            answer = {"ok": done or {}}
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - whatever it is, the runner is told
            answer = {"error": _error(error)}
        self._tasks.pop(request["id"], None)
        _tell({"id": request["id"]} | answer)

    async def hello(self, _: Json) -> Json:
        features = ["call", "stream", "lease", "work", "watch", "trace"]
        return {"language": "python", "version": version("headway"), "features": features}

    async def connect(self, request: Json) -> None:
        options = request.get("options", {})
        call_timeout = timedelta(milliseconds=options.get("call_timeout_ms", 10_000))
        target, credentials, token = ",".join(request["addresses"]), _credentials(options), _token(options)
        if self._is_core and credentials is not None and token is not None:
            credentials = grpc.composite_channel_credentials(credentials, grpc.metadata_call_credentials(Bearer(token)))
        self._clients[request["client"]] = (
            CoreClient(Connection(target, credentials=credentials, call_timeout=call_timeout))
            if self._is_core
            else headway.connect(target, credentials=credentials, token=token, call_timeout=call_timeout)
        )

    async def disconnect(self, request: Json) -> None:
        client = self._clients.pop(request["client"])
        for key in [key for key in self._handles if key[0] == request["client"]]:
            await self._handles.pop(key).close()
        await client.close()

    async def cancel(self, request: Json) -> None:
        if task := self._tasks.get(request["target"]):
            task.cancel()

    async def call(self, request: Json) -> Json:
        method, stub = self._rpc(request)
        message = ParseDict(request["request"], GetMessageClass(method.input_type)())
        seconds = request["timeout_ms"] / 1000 if request.get("timeout_ms") else 0.0
        if request.get("attempts") == 1:
            try:
                response = await stub(message, timeout=seconds or _PATIENCE_S)
            except grpc.aio.AioRpcError as error:
                raise from_rpc_error(error) from error
        else:
            response = await self._clients[request["client"]].connection.call(stub, message, timeout=seconds)
        return {"response": MessageToDict(response)}

    async def open(self, request: Json) -> None:
        method, stub = self._rpc(request)
        kind = GetMessageClass(method.input_type)
        options = {"timeout": request["timeout_ms"] / 1000} if request.get("timeout_ms") else {}
        if request.get("request") is None:
            stream = Stream(stub(**options), kind, is_duplex=True)
        else:
            stream = Stream(stub(ParseDict(request["request"], kind()), **options), kind, is_duplex=False)
        self._handles[request["client"], request["handle"]] = stream

    def _rpc(self, request: Json) -> tuple[Any, Any]:
        service, _, name = request["rpc"].rpartition(".")
        connection = self._clients[request["client"]].connection
        method = _SERVICES[service or "QueueService"].methods_by_name[name]
        return method, getattr(connection.admin if service == "AdminService" else connection.queues, name)

    async def send(self, request: Json) -> None:
        stream = self._handle(request)
        await stream.call.write(ParseDict(request["request"], stream.request_class()))

    async def half_close(self, request: Json) -> None:
        await self._handle(request).call.done_writing()

    async def next(self, request: Json) -> Json:
        answer: Json = await self._handle(request).reading.next(request["timeout_ms"])
        return answer

    async def close(self, request: Json) -> None:
        await self._handles.pop((request["client"], request["handle"])).close()

    async def put(self, request: Json) -> Json:
        carrier = {name: request[name] for name in ("traceparent", "tracestate") if request.get(name)}
        span = trace.get_current_span(_W3C.extract(carrier))
        with trace.use_span(trace.NonRecordingSpan(span.get_span_context())):
            results = await self._queue(request).put_many(
                [
                    make_message(
                        base64.b64decode(message["payload"]),
                        id=message.get("id", ""),
                        headers=message.get("headers"),
                        when=_span(message, "delay_ms"),
                        time_to_live=_span(message, "ttl_ms"),
                    )
                    for message in request["messages"]
                ],
                wait=_span(request, "wait_ms"),
            )
        return {"results": [MessageToDict(result) for result in results]}

    async def lease(self, request: Json) -> Json:
        held = Held(self._queue(request), request)
        try:
            lease = await asyncio.shield(held.entered)
        except asyncio.CancelledError:
            await held.close()
            raise
        if lease is None:
            return {"empty": True}
        self._handles[request["client"], request["handle"]] = held
        return _told(lease)

    async def lease_end(self, request: Json) -> None:
        held: Held = self._handles.pop((request["client"], request["handle"]))
        if request["how"] == "cancel":
            await held.close()
        else:
            held.end.set_result(request)
            await held.task

    async def lease_ack(self, request: Json) -> None:
        await self._handle(request).lease.ack(base64.b64decode(request.get("result") or ""))

    async def lease_delay(self, request: Json) -> None:
        await self._handle(request).lease.delay(_span(request, "delay_ms"), reason=request.get("reason", ""))

    async def lease_progress(self, request: Json) -> None:
        await self._handle(request).lease.progress(request["fraction"], request["note"])

    async def lease_is_lost(self, request: Json) -> Json:
        return {"lost": self._handle(request).lease.is_lost}

    async def work(self, request: Json) -> None:
        self._handles[request["client"], request["handle"]] = Working(request["handle"], self._queue(request), request)

    async def finish(self, request: Json) -> None:
        self._handle(request).handling.pop(request["lease"]).set_result(request)

    async def work_stop(self, request: Json) -> None:
        self._handle(request).stop.set()

    async def watch(self, request: Json) -> None:
        updates = self._queue(request).watch(*request["ids"], attended=request.get("attended", False))
        self._handles[request["client"], request["handle"]] = Watching(updates)

    async def watch_next(self, request: Json) -> Json:
        return await self.next(request)

    async def watch_close(self, request: Json) -> None:
        await self.close(request)

    def _handle(self, request: Json) -> Any:
        return self._handles[request["client"], request["handle"]]

    def _queue(self, request: Json) -> Queue:
        return self._clients[request["client"]].queue(request["queue"])


def _credentials(options: Json) -> grpc.ChannelCredentials | None:
    """TLS by the files of a connect's options; None: plain text."""
    if "ca" not in options:
        return None
    ca, key, cert = (Path(options[name]).read_bytes() if name in options else None for name in ("ca", "key", "cert"))
    return grpc.ssl_channel_credentials(ca, key, cert)


def _token(options: Json) -> Callable[[], str] | None:
    """Reads the token's file whenever it is called."""
    return (lambda: Path(options["token_file"]).read_text().strip()) if "token_file" in options else None


def _span(request: Json, name: str) -> timedelta | None:
    return None if request.get(name) is None else timedelta(milliseconds=request[name])


def _told(lease: Lease) -> Json:
    carrier: dict[str, str] = {}
    delivery = lease.delivery
    context = context_of(delivery.message.headers)
    if context is not None:
        _W3C.inject(carrier, context)
    told = {"message": MessageToDict(delivery.message), "attempt": delivery.attempt, "ticket": str(delivery.ticket)}
    return told | {"traceparent": carrier.get("traceparent")}


def _event(update: headway.Update) -> Json:
    match update:
        case headway.Waiting():
            position = {"position": str(update.position), "length": str(update.length), "limit": update.limit}
            return {"kind": "position", "id": update.id, "movedBack": update.moved_back} | position
        case headway.Leased():
            progress = None if update.progress is None else {"fraction": update.progress, "note": update.note}
            told = {"kind": "leased", "id": update.id, "attempt": update.attempt}
            return told if progress is None else told | {"progress": progress}
        case headway.Delayed():
            return {"kind": "delayed", "id": update.id}
        case headway.Finished():
            outcome = "UNSPECIFIED" if update.outcome is headway.Outcome.UNKNOWN else update.outcome.value
            told = {"kind": "finished", "id": update.id, "outcome": f"OUTCOME_{outcome}", "cause": update.cause}
            return told | {"result": base64.b64encode(update.result).decode()}


def _error(error: BaseException) -> Json:
    told: Json = {"reason": None, "metadata": {}, "retry_after_ms": None, "violations": [], "outcome_unknown": False}
    if isinstance(error, headway.HeadwayError):
        told |= {"code": error.code.name, "reason": error.reason_name or None, "metadata": dict(error.metadata)}
        told["outcome_unknown"] = error.is_outcome_unknown
        told["violations"] = [{"field": each.field, "description": each.description} for each in error.violations]
        if error.retry_after is not None:
            told["retry_after_ms"] = error.retry_after / timedelta(milliseconds=1)
    else:
        told["code"] = "CANCELLED" if isinstance(error, asyncio.CancelledError) else "DRIVER"
    return told | {"text": str(error) or type(error).__name__}


def _tell(line: Json) -> None:
    sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
    sys.stdout.flush()


asyncio.run(Driver(is_core=sys.argv[1:] == ["core"]).serve())
