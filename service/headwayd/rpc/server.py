"""The gRPC server: where it listens, what its connections may do, whether it says that it serves, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

import structlog
from google.protobuf.descriptor import ServiceDescriptor

from headway.v1 import admin_service_pb2, queue_service_pb2
from headwayd.access.tls import TlsFiles
from headwayd.domain.footprint import LEAST_WINDOW_BYTES
from headwayd.domain.kept import kept
from headwayd.domain.limits import REQUEST_MARGIN_BYTES, Limits
from headwayd.domain.namespaces import DEFAULT
from headwayd.engine.counting.counts import Counts
from headwayd.rpc.acceptors import MAX_STREAMS, Acceptors, acceptor_count, share_of
from headwayd.rpc.admin_servicer import AdminServicer
from headwayd.rpc.awaiting import awaited_beside
from headwayd.rpc.backlog import Backlog
from headwayd.rpc.bridge import Bridge
from headwayd.rpc.counting import counted
from headwayd.rpc.edge import (
    SETTLING_METHODS,
    CallRouter,
    Context,
    Gate,
    Wrap,
    behaviours_of,
    refusable,
    service_handlers,
)
from headwayd.rpc.encoded import with_messages
from headwayd.rpc.engine_port import Engine
from headwayd.rpc.guard import Behaviours, Guard, Guarding
from headwayd.rpc.health import SERVICE_NAME as HEALTH_SERVICE
from headwayd.rpc.health import HealthServicer, health_handlers
from headwayd.rpc.narrowing import Narrowing
from headwayd.rpc.own_core import OwnCore
from headwayd.rpc.queue_servicer import QueueServicer
from headwayd.rpc.reflection import reflection_handlers
from headwayd.rpc.refusing import refusals
from headwayd.rpc.scaler_servicer import SCALER_SERVICE, ScalerServicer
from headwayd.rpc.secure import credentials_of
from headwayd.rpc.tracing.calls import CallTracing
from headwayd.rpc.tracing.port import JobTracer

log: Any = structlog.get_logger(__name__)

QUEUE_SERVICE = queue_service_pb2.DESCRIPTOR.services_by_name["QueueService"]
ADMIN_SERVICE = admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"]

_MS = timedelta(milliseconds=1)

# After the grace handlers are cancelled; this is for what they do then, one store call to give leases back.
_CLEAN_UP_S = 2.5
_SPARE_STREAMS = 100
_ENDED_STREAMS = 500
# Calls that do not stand behind all others until they are accepted: gRPC keeps those of a registered method apart.
_LANES = (
    (HEALTH_SERVICE, "Check"),
    *((QUEUE_SERVICE.full_name, method) for method in sorted(SETTLING_METHODS)),
)


class RpcServer:
    """Serves `engine` on the addresses in `listen`.

    With `tls` its ports serve TLS, with `guarding` it knows its callers. `is_plain`: calls are taken the way gRPC's
    generated code does it (see `plain`). `scales`: KEDA is answered, too. With `counts` calls are counted; `tracer` is
    told of every job. `flood_calls`: as many calls at a time are left to a flood (see `narrowing`); 0 = it is left as
    many as otherwise. `receive_window`: bytes that a call may send before they are read. `write_timeout`: how long a
    reply may be left untaken, or a call's request take to come.

    Life: `start`, `set_serving(True)`; to end `set_serving(False)`, `start_draining`, `stop`. It is NOT_SERVING until
    told otherwise. All methods belong to one event loop.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        listen: Sequence[str],
        limits: Limits,
        keepalive: timedelta,
        keepalive_timeout: timedelta,
        max_connection_idle: timedelta,
        handshake_timeout: timedelta,
        write_timeout: timedelta,
        acceptors: int,
        flood_calls: int,
        reuse_port: bool = False,
        receive_window: int = LEAST_WINDOW_BYTES,
        is_plain: bool = False,
        scales: bool = False,
        counts: Counts | None = None,
        tls: TlsFiles | None = None,
        guarding: Guarding | None = None,
        has_reflection: bool = False,
        tracer: JobTracer | None = None,
    ) -> None:
        self._listen = tuple(listen)
        self._credentials = None if tls is None else partial(credentials_of, tls)
        self._gate = Gate(limits)
        self._write_timeout = write_timeout
        self._awaited = awaited_beside(self._gate, timeout=write_timeout, counts=counts)
        self._ending_unread: asyncio.Task[None] | None = None
        self._ending_late: asyncio.Task[NoReturn] | None = None
        servicers = _servicers(engine, scales=scales)
        services = [service.full_name for _, service in servicers]

        def around(namespace: str) -> Wrap | None:
            """Of the callers of a namespace. Replies that are looked into, or written by generated code, are messages;
            without a tracer calls are what they are: nothing is asked of each."""
            if tracer is not None:
                traced = CallTracing(tracer, namespace=namespace, limits=limits).traced
                return lambda name, behaviour: traced(name, with_messages(behaviour))
            return (lambda _name, behaviour: with_messages(behaviour)) if is_plain else None

        def serve(view: Engine, namespace: str) -> Behaviours:
            return _behaviours(view, scales=scales, wrap=around(namespace))

        self._guard = None if guarding is None else Guard(guarding, serve)
        self._health = HealthServicer(services, self._gate.beside)
        count = acceptor_count(acceptors, max_connections=limits.max_connections)
        options = _channel_options(
            limits,
            keepalive=keepalive,
            keepalive_timeout=keepalive_timeout,
            max_connection_idle=max_connection_idle,
            handshake_timeout=handshake_timeout,
            acceptors=count,
            receive_window=receive_window,
        )
        self._acceptors = Acceptors(
            count, options=options, shares_addresses=reuse_port, is_plain=is_plain, awaited=self._awaited
        )
        self._flood_calls, self._limits = flood_calls, limits
        self._core = OwnCore()
        self._narrowing: Narrowing | None = None
        handlers = dict(health_handlers(self._health))  # for everybody
        if has_reflection:
            handlers.update(reflection_handlers([*services, HEALTH_SERVICE], self._guard, self._gate.beside))
        for servicer, service in servicers:
            guarded = service_handlers(
                servicer,
                service,
                gate=self._gate,
                max_request_bytes=limits.max_request_bytes,
                guard=self._guard,
                wrap=around(DEFAULT),
            )
            handlers.update(guarded if counts is None else counted(guarded, counts))
        self.bridge = Bridge(handlers, (QUEUE_SERVICE, ADMIN_SERVICE))
        if is_plain:
            self._acceptors.serve_plainly(handlers, max_request_bytes=limits.max_request_bytes)
            return
        refused = refusals(refusable(handlers), gate=self._gate, counts=counts)
        self._acceptors.serve(handlers, CallRouter(handlers, gate=self._gate, refusals=refused), lanes=_LANES)

    @property
    def running_count(self) -> int:
        """How many handlers run now, health checks not counted."""
        return self._gate.running_count

    @property
    def keeps_flood_out(self) -> bool:
        """Whether connections may have few calls now, because of a flood."""
        return self._narrowing is not None and self._narrowing.is_narrow

    async def start(self) -> list[str]:
        """Begins to listen; the addresses with their real ports. Raises CannotListen, and then nothing is open."""
        bound = await self._acceptors.start(self._listen, self._credentials)
        books = self._acceptors.books(lambda: self._gate.running_count + self._gate.beside.count + self._awaited.count)
        if self._flood_calls and self._acceptors.can_be_renewed:
            self._narrowing = Narrowing(
                books,
                renew=self._acceptors.renew,
                floods=self._core.keep_clear,
                counts=self._gate,
                calls=self._flood_calls,
                max_pending=self._limits.max_pending_calls,
                max_streams=_max_streams(self._limits),
            )
        self._gate.backlog = Backlog(self._narrowing or books, found_behind=self._core.keep_clear)
        self._ending_unread = kept(self._gate.end_unread(self._write_timeout.total_seconds()), "end unread")
        self._ending_late = kept(self._awaited.end_late(), "end late")
        return bound

    def set_serving(self, is_serving: bool) -> None:
        """What `grpc.health.v1` tells: the server as a whole and each service."""
        self._health.set_serving(is_serving)

    def set_ready(self, is_ready: bool) -> None:
        """Whether the store can be counted on; of what health tells it concerns `readiness` only."""
        self._health.set_ready(is_ready)

    @property
    def is_operator(self) -> Callable[[str], Awaitable[bool]] | None:
        """Tells whether credentials are the operator's; None = callers are not known."""
        return None if self._guard is None else self._guard.is_operator

    async def look_at_running(self) -> None:
        """Ends the streams and the waits whose callers may not any more. To be called every few seconds if callers are
        known."""
        if self._guard is not None:
            await self._guard.look_at_running()

    def start_draining(self) -> None:
        """From now on new work is refused with SHUTTING_DOWN; Ack, Delay and Extend are still served. Idempotent."""
        self._gate.start_draining()
        self._awaited.start_draining()
        if self._narrowing is not None:
            self._narrowing.end()

    async def stop(self, grace: timedelta) -> None:
        """Takes no more calls, lets those that run end within `grace`, cancels the rest, and waits for their clean-up.

        gRPC's own stop returns before cancelled handlers have cleaned up, so they are counted here. Blocks for at most
        `grace` and a few seconds more. Idempotent.
        """
        self.start_draining()
        self._health.end()
        if self._ending_unread is not None:
            self._ending_unread.cancel()
        await self._acceptors.stop(grace.total_seconds())
        if self._ending_late is not None:
            self._ending_late.cancel()
        self._core.end()
        if not await self._gate.wait_until_idle(_CLEAN_UP_S):
            log.warning("handlers_left_running", count=self._gate.running_count)


def _servicers(engine: Engine, *, scales: bool) -> list[tuple[object, ServiceDescriptor]]:
    servicers: list[tuple[object, ServiceDescriptor]] = [
        (QueueServicer(engine), QUEUE_SERVICE),
        (AdminServicer(engine), ADMIN_SERVICE),
    ]
    if scales:
        servicers.append((ScalerServicer(engine), SCALER_SERVICE))
    return servicers


def _behaviours(engine: Engine, *, scales: bool, wrap: Wrap | None) -> Behaviours:
    """What serves a caller who sees this engine."""
    behaviours: dict[str, Callable[[Any, Context], Any]] = {}
    for servicer, service in _servicers(engine, scales=scales):
        behaviours.update(behaviours_of(servicer, service, wrap))
    return behaviours


def _max_streams(limits: Limits) -> int:
    """Of one connection, calls and streams. Our own bound on streams refuses; what is beyond this one clients hold back
    without a word, so it leaves as much again to calls."""
    return 2 * limits.max_streams_per_connection + _SPARE_STREAMS


def _channel_options(
    limits: Limits,
    *,
    keepalive: timedelta,
    keepalive_timeout: timedelta,
    max_connection_idle: timedelta,
    handshake_timeout: timedelta,
    acceptors: int,
    receive_window: int,
) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.max_request_bytes + REQUEST_MARGIN_BYTES),
        ("grpc.max_send_message_length", -1),  # answers are bounded by the engine, with items in mind
        # Calls that wait to be accepted by Python; gRPC's own default (1,000) loses calls when many clients connect at
        # once. What it refuses it ends with CANCELLED and no details (seen with 1.85; it has no setting for that);
        # nothing was begun. Below the first of a pair none is refused, between the two some are, at random: the same,
        # so that there is one bound.
        ("grpc.server.max_pending_requests", share_of(limits.max_pending_calls, acceptors)),
        ("grpc.server.max_pending_requests_hard_limit", share_of(limits.max_pending_calls, acceptors)),
        ("grpc.max_metadata_size", limits.max_metadata_bytes + 1),  # it refuses what is not below
        ("grpc.absolute_max_metadata_size", limits.max_metadata_bytes + 1),
        ("grpc.max_allowed_incoming_connections", share_of(limits.max_connections, acceptors)),
        # Calls that were reset count until the client has answered a ping, or it could make new ones faster than they
        # are done away with (CVE-2023-44487).
        (MAX_STREAMS, _max_streams(limits)),
        ("grpc.http2.ping_on_rst_stream_percent", 100),
        # Of calls that have ended, and that Python has not let go of yet, so many do not count. With none, gRPC's own
        # choice, clients that keep to the bound are refused when they come near it.
        ("grpc.http2.max_deallocating_streams", _ENDED_STREAMS),
        # So many calls of a connection are begun before it is another one's turn. With gRPC's own 32 a flood over a few
        # connections keeps all of its threads busy, and others' calls, health checks too, wait for longer.
        ("grpc.http2.max_requests_per_read", 1),
        ("grpc.max_connection_idle_ms", max_connection_idle // _MS),
        ("grpc.server_handshake_timeout_ms", handshake_timeout // _MS),
        # A dead peer is noticed after the sum of both at most; gRPC's own default is 2 h.
        ("grpc.keepalive_time_ms", keepalive // _MS),
        ("grpc.keepalive_timeout_ms", keepalive_timeout // _MS),
        # This is what gRPC goes by (seen with 1.85: "Set ping timeout timer of 60000ms" in its trace http2_ping), and
        # its own default is a minute.
        ("grpc.http2.ping_timeout_ms", keepalive_timeout // _MS),
        ("grpc.keepalive_permit_without_calls", 1),
        # Clients may ping this often, also without calls, and are not told to go away for it.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        # By itself gRPC has a client wait after 64 KiB, less than a batch may have, until it knows that they were read.
        # Its own way to find more, by pings, costs memory and pings with many streams.
        ("grpc.http2.lookahead_bytes", receive_window),
        ("grpc.http2.bdp_probe", 0),
    ]
