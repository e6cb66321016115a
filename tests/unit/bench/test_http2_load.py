"""The load of `bench.overload` tells of each call once what came of it, however the bytes of the answers are cut, and
from the instant on at which it was due."""

import asyncio
import itertools
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from bench import http2_load
from bench.http2_load import Call, Connection, Load, Plan, Tally

DATA, HEADERS, RST_STREAM = 0, 1, 3
END_STREAM, END_HEADERS = 1, 4
COUNT = 40
TRAILERS = b"\x00\x0bgrpc-status\x018"


def frame(kind: int, stream: int, payload: bytes, flags: int = 0) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def answer(stream: int) -> bytes:
    """One message and that it was OK."""
    return (
        frame(HEADERS, stream, b"\x88", END_HEADERS)
        + frame(DATA, stream, bytes(7))
        + frame(HEADERS, stream, b"\x00\x0bgrpc-status\x010", END_HEADERS | END_STREAM)
    )


def reset(stream: int) -> bytes:
    return frame(RST_STREAM, stream, (7).to_bytes(4))


class Told:
    """In the place of `Load`."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.answered_at: list[float] = []
        self.refused_at: dict[bytes, list[float]] = {}

    def answered(self, call: Call) -> None:
        self.answered_at.append(call.due_at)

    def refused(self, call: Call, trailers: bytes) -> None:
        self.refused_at.setdefault(trailers, []).append(call.due_at)

    def replace(self, connection: Connection) -> None:
        del connection


class Wire(asyncio.WriteTransport):
    """Keeps what is written."""

    written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False


@pytest.mark.parametrize("size", [1, 5, 13, 20, 10_000])
def test_each_call_is_told_of_once(size: int) -> None:
    told: Any = Told()
    connection = Connection(Plan(port=1, path="/a.B/C", request="", seconds=1.0), told)
    wire = Wire()
    connection.connection_made(wire)
    connection.call([Call(float(n)) for n in range(COUNT)])
    streams = [2 * n + 1 for n in range(COUNT)]
    assert told.tally.sent == COUNT
    assert all(stream.to_bytes(4) in wire.written for stream in streams)

    answers = b"".join(
        {
            0: answer(stream),
            1: frame(HEADERS, stream, TRAILERS, END_HEADERS | END_STREAM),
            # Of a stream that has ended before nothing else is told.
            2: reset(stream) + reset(max(stream - 4, 1)),
            3: reset(stream),
            # The last frame of an answer may be a reset: it has come before.
            4: frame(HEADERS, stream, b"\x88", END_HEADERS) + frame(DATA, stream, bytes(7)) + reset(stream),
        }[n % 5]
        for n, stream in enumerate(streams)
    )
    for at in range(0, len(answers), size):
        connection.data_received(answers[at : at + size])

    assert sorted(told.answered_at) == [float(n) for n in range(COUNT) if n % 5 in (0, 4)]
    assert sorted(told.refused_at.pop(TRAILERS)) == [float(n) for n in range(COUNT) if n % 5 == 1]
    assert sorted(told.refused_at.pop(b"")) == [float(n) for n in range(COUNT) if n % 5 in (2, 3)]
    assert told.refused_at == {}
    assert connection.running_count == 0


@pytest.mark.parametrize("clients", [0, 10])
async def test_calls_count_from_when_they_were_due_not_from_when_the_load_came_to_them(
    monkeypatch: pytest.MonkeyPatch, clients: int
) -> None:
    instants = itertools.count(0.0, 0.01)  # of each look at the clock
    monkeypatch.setattr(http2_load, "time", SimpleNamespace(perf_counter=lambda: next(instants)))
    monkeypatch.setattr(http2_load, "_TICK_S", 0.0)
    monkeypatch.setattr(http2_load, "_LINGER_S", 0.0)
    made: list[list[float]] = []

    async def connect(load: Load, connection: Connection) -> None:
        del load, connection

    def call(connection: Connection, calls: Iterable[Call]) -> None:
        del connection
        made.append([one.due_at for one in calls])

    monkeypatch.setattr(Load, "_connect", connect)
    monkeypatch.setattr(Connection, "call", call)
    plan = Plan(port=1, path="/a.B/C", request="", seconds=0.2, rate=1_000.0, connections=4, clients=clients)
    await Load(plan).run()

    shares = [share for share in made if share]
    due_s, before = shares[0][0], 0
    for share in shares:
        assert share == pytest.approx([due_s + before / plan.rate] * len(share), abs=1e-6)
        before += len(share)
    assert before > 100
