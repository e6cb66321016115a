"""Calls one unary gRPC method over HTTP/2 without a gRPC library, at a price of a few microseconds a call: so that one
process can offer ten times what a service takes. `python -m bench.http2_load` with a `Plan` as JSON on standard input;
prints a `Tally` as JSON.

Each request is the same few bytes but for its stream's number (RFC 9113, RFC 7541 without Huffman or indexing). Of an
answer only is known whether it had a message (then the call was OK), or which status it had instead, and when its
caller shall come again.

A load at a rate comes from somebody who never waits, whatever is answered, or from so many clients of the kind that the
protocol asks for: each has a few calls in flight at most, and makes none for as long as it was told to stay away. They
also heed how many calls a connection may have at a time, as clients' libraries do. What they could not offer for one of
these reasons counts as offered and unsent. A connection that is told to go away (GOAWAY) is replaced.
"""

from __future__ import annotations

import asyncio
import gc
import json
import math
import random
import sys
import time
from base64 import b64decode
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from google.rpc.error_details_pb2 import RetryInfo

from bench.http2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST,
    SETTINGS,
    WINDOW,
    frame,
    headers,
    literal,
)

_FRAME = Struct(">BHBBL")  # length (24 bits), type, flags, stream
_SETTING = Struct(">HL")
_MAX_CONCURRENT_STREAMS = 3
_MAX_WINDOW = 2**31 - 1
_FIRST_WINDOW = 65_535
_TICK_S = 0.002
_LINGER_S = 5.5  # for the last answers
_RETRY_INFO = b"google.rpc.RetryInfo\x12"  # the end of its type's name, and the tag of what follows
# So long stays away who was refused without being told for how long (CANCELLED by gRPC itself), and up to this share of
# it more or less, as gRPC's clients do when they retry (its proposal A6).
_UNTOLD_S, _JITTER = 1.0, 0.2
_CONNECT_AGAIN_S = 0.05
_DEADLINE_EXCEEDED = "4"  # nobody refused that call


@dataclass(frozen=True)
class Plan:
    """What to offer: `rate` calls a second, or, if that is 0, always `in_flight` calls. `deadline_s` counts from the
    instant at which a call was due, and is what the service is told, too. `clients` > 0: the rate is that of so many,
    each with at most `each_in_flight` calls; 0: of one who never waits."""

    port: int
    path: str
    request: str  # base64
    seconds: float
    rate: float = 0.0
    in_flight: int = 100
    connections: int = 8
    deadline_s: float = 5.0
    clients: int = 0
    each_in_flight: int = 50


@dataclass
class Tally:
    """What came of it."""

    offered: int = 0
    sent: int = 0
    in_time: int = 0
    too_late: int = 0
    unanswered: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    with_details: int = 0  # refusals that say more than their status: reason and when to come again
    p50_ms: float = 0.0
    p99_ms: float = 0.0


class Refusal(NamedTuple):
    """What a refused call was told."""

    status: str
    has_details: bool
    retry_after_s: float


@lru_cache(maxsize=1_000)
def _refusal(trailers: bytes) -> Refusal:
    at = trailers.find(b"grpc-status") + 11
    length = trailers[at] if at > 10 else 0
    status = trailers[at + 1 : at + 1 + length].decode() or "reset"
    retry_after_s = _UNTOLD_S
    if (at := trailers.find(_RETRY_INFO)) >= 0:
        at += len(_RETRY_INFO)
        delay = RetryInfo.FromString(trailers[at + 1 : at + 1 + trailers[at]]).retry_delay
        retry_after_s = float(delay.ToTimedelta().total_seconds())
    return Refusal(status, b"-details-bin" in trailers, retry_after_s)


@dataclass(slots=True, eq=False)
class Client:
    """One of many, and what it keeps to."""

    running: int = 0
    stays_away_until: float = 0.0


class Call(NamedTuple):
    """A call that was due at this instant, and whose it is, if that matters. Equal ones may be one object."""

    due_at: float
    client: Client | None = None


def _header_block(plan: Plan) -> bytes:
    timeout = f"{round(plan.deadline_s * 1000)}m"
    return headers("localhost", plan.path) + literal(b"\x00\x0cgrpc-timeout", timeout.encode())


class Connection(asyncio.Protocol):
    """One connection: what waits to be sent, what waits for its answer."""

    def __init__(self, plan: Plan, load: Load) -> None:
        self._load = load
        self._heeds_settings = bool(plan.clients)
        block, message = _header_block(plan), b64decode(plan.request)
        data = b"\0" + len(message).to_bytes(4) + message
        self._head = len(block).to_bytes(3) + bytes((HEADERS, END_HEADERS))
        self._middle = block + len(data).to_bytes(3) + bytes((DATA, END_STREAM))
        self._data = data
        self._window = _FIRST_WINDOW
        self._stream = -1
        # Which the service's flow control holds back: of a flood millions, so they are taken one by one from its head.
        self._due: deque[Call] = deque()
        self._running: dict[int, Call] = {}
        self._has_message: set[int] = set()
        self._rest = b""
        self._is_writable = False
        self._most_running: float = math.inf  # as the service says, for who heeds it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        # HEADER_TABLE_SIZE 0: nothing is indexed in answers. INITIAL_WINDOW_SIZE, and the connection's: no limit.
        # GRPC_ALLOW_TRUE_BINARY_METADATA (gRPC's own, 0xfe03): details come as they are, not in base64.
        settings = (1).to_bytes(2) + bytes(4) + (4).to_bytes(2) + _MAX_WINDOW.to_bytes(4) + b"\xfe\x03\0\0\0\x01"
        window = (_MAX_WINDOW - _FIRST_WINDOW).to_bytes(4)
        transport.write(PREFACE + frame(SETTINGS, 0, 0, settings) + frame(WINDOW, 0, 0, window))
        self._is_writable = True
        self._send()

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True

    def call(self, calls: Iterable[Call]) -> None:
        """Makes these calls as soon as flow control allows."""
        self._due.extend(calls)
        self._send()

    def _send(self) -> None:
        if not self._due or not self._is_writable:
            return
        allowed = min(self._most_running - len(self._running), self._window // len(self._data))
        count = int(min(len(self._due), max(allowed, 0)))
        head, middle, data, running = self._head, self._middle, self._data, self._running
        number = self._stream
        parts: list[bytes] = []
        take = self._due.popleft
        for _ in range(count):
            number += 2
            stream = number.to_bytes(4)
            parts += (head, stream, middle, stream, data)
            running[number] = take()
        self._stream = number
        self._window -= count * len(data)
        self._load.tally.sent += count
        if parts:
            self._transport.write(b"".join(parts))

    def data_received(self, data: bytes) -> None:
        read, at = self._rest + data if self._rest else data, 0
        last = len(read) - _FRAME.size
        while at <= last:
            high, low, kind, flags, stream = _FRAME.unpack_from(read, at)
            payload_at = at + _FRAME.size
            end = payload_at + (high << 16 | low)
            if end > len(read):
                break
            if kind == HEADERS:
                if flags & END_STREAM:
                    self._on_end(stream, read[payload_at:end])
            elif kind == DATA:
                self._has_message.add(stream)
            else:
                self._on_other(kind, flags, stream, read[payload_at:end])
            at = end
        self._rest = read[at:]
        self._send()

    def _on_other(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == RST:
            self._on_end(stream, b"")
        elif kind == WINDOW and stream == 0:
            self._window += int.from_bytes(payload)
        elif kind == SETTINGS and not flags & ACK:
            settings = dict(_SETTING.iter_unpack(payload))
            if self._heeds_settings:
                self._most_running = settings.get(_MAX_CONCURRENT_STREAMS, math.inf)
            self._transport.write(frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._transport.write(frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            self._load.replace(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._load.replace(self)
        left, self._running = self._running, {}
        for call in left.values():
            self._load.refused(call, b"")

    def hand_over(self) -> Iterable[Call]:
        """What was not sent, which another connection is to send."""
        due, self._due = self._due, deque()
        return due

    def _on_end(self, stream: int, trailers: bytes) -> None:
        call = self._running.pop(stream, None)
        if call is None:
            return
        if stream in self._has_message:
            self._has_message.discard(stream)
            self._load.answered(call)
        else:
            self._load.refused(call, trailers)

    @property
    def running_count(self) -> int:
        """Calls that were asked for and have no answer yet."""
        return len(self._running) + len(self._due)


class Load:
    """All connections, and what came of their calls."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.tally = Tally()
        self._refusals: Counter[bytes] = Counter()  # by what they said; there are few kinds
        self._took_ms: list[float] = []
        self._running = 0
        self._clients = [Client() for _ in range(plan.clients)]
        self._turn = 0
        self._connections: list[Connection] = []
        self._left: list[Connection] = []
        self._connecting: list[asyncio.Task[None]] = []
        self._is_over = False

    async def _connect(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        while not self._is_over:
            # It may meet one that just stops to listen.
            with suppress(ConnectionError):
                await loop.create_connection(lambda: connection, "127.0.0.1", self._plan.port)
                return
            await asyncio.sleep(_CONNECT_AGAIN_S)

    def replace(self, connection: Connection) -> None:
        """The service wants no more calls on this connection."""
        if connection in self._connections and not self._is_over:
            new = Connection(self._plan, self)
            self._connections[self._connections.index(connection)] = new
            self._left.append(connection)
            new.call(connection.hand_over())
            self._connecting.append(asyncio.create_task(self._connect(new)))

    def _ended(self, call: Call) -> None:
        self._running -= 1
        if call.client is not None:
            call.client.running -= 1

    def answered(self, call: Call) -> None:
        """A call was OK."""
        took_s = time.perf_counter() - call.due_at
        self._ended(call)
        if took_s > self._plan.deadline_s:
            self.tally.too_late += 1
        else:
            self.tally.in_time += 1
            self._took_ms.append(took_s * 1_000)

    def refused(self, call: Call, trailers: bytes) -> None:
        """A call failed."""
        self._ended(call)
        self._refusals[trailers] += 1
        if call.client is not None:
            said = _refusal(trailers)
            if said.status != _DEADLINE_EXCEEDED:
                share = 1.0 if said.has_details else random.uniform(1 - _JITTER, 1 + _JITTER)
                away_until = time.perf_counter() + said.retry_after_s * share
                call.client.stays_away_until = max(call.client.stays_away_until, away_until)

    def _calls(self, count: int, due_at: float) -> list[Call]:
        """Of so many calls, of which the first was due at this instant, those that are made. The others' is so little
        later that it is taken for the same."""
        if not self._clients:
            return [Call(due_at)] * count
        now = time.perf_counter()
        calls = []
        for _ in range(count):
            self._turn = (self._turn + 1) % len(self._clients)
            client = self._clients[self._turn]
            if client.running < self._plan.each_in_flight and client.stays_away_until <= now:
                client.running += 1
                calls.append(Call(due_at, client))
        return calls

    async def run(self) -> Tally:
        """Offers what the plan says, and waits for the last answers."""
        plan = self._plan
        connections = self._connections = [Connection(plan, self) for _ in range(plan.connections)]
        await asyncio.gather(*map(self._connect, connections))
        began = time.perf_counter()
        turn = 0
        while (now := time.perf_counter() - began) < plan.seconds:
            wanted = round(now * plan.rate) - self.tally.offered if plan.rate else plan.in_flight - self._running
            share = -(-wanted // len(connections))
            while wanted > 0:
                count = min(share, wanted)
                due_at = began + self.tally.offered / plan.rate if plan.rate else time.perf_counter()
                calls = self._calls(count, due_at)
                connections[turn % len(connections)].call(calls)
                turn, wanted = turn + 1, wanted - count
                self.tally.offered += count
                self._running += len(calls)
            await asyncio.sleep(_TICK_S)
        await asyncio.sleep(_LINGER_S)
        self._is_over = True
        await asyncio.gather(*self._connecting)
        tally = self.tally
        tally.unanswered = sum(one.running_count for one in (*connections, *self._left))
        for trailers, count in self._refusals.items():
            said = _refusal(trailers)
            tally.statuses[said.status] = tally.statuses.get(said.status, 0) + count
            tally.with_details += count * said.has_details
        took = sorted(self._took_ms) or [0.0]
        tally.p50_ms, tally.p99_ms = took[len(took) // 2], took[int(len(took) * 0.99)]
        return tally


def main() -> None:
    """Reads the plan, and tells what came of it."""
    gc.disable()  # there are no cycles, and looking for them takes time from those who are measured
    plan = Plan(**json.load(sys.stdin))
    print(json.dumps(asdict(asyncio.run(Load(plan).run()))))


if __name__ == "__main__":
    main()
