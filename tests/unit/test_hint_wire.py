"""The wire to a server that tells what has changed: however much is asked at a time, little of it waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import hiredis
import pytest

from harness import eventually
from headwayd.store import hint_wire
from headwayd.store.connections import ConnectionSource
from headwayd.store.hint_wire import HintWire

QUEUES = 1_000
PLENTY_S = 60.0  # of time, for an answer


class FakeConnection:
    """To a server that answers what is asked of a key by the number in its name, as soon as it is let."""

    def __init__(self, goes_on: asyncio.Event) -> None:
        self.pieces: list[list[list[bytes]]] = []  # the commands of each
        self.socket_timeout: float | None = 1.0
        self._goes_on = goes_on
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self._is_subscribed = False

    async def send_packed_command(self, packed: Sequence[bytes], check_health: bool) -> None:
        assert not check_health
        reader = hiredis.Reader()
        reader.feed(b"".join(packed))
        piece: list[list[bytes]] = []
        while isinstance(command := reader.gets(), list):
            piece.append(command)
            for answer in self._answer(command):
                self._answers.put_nowait(answer)
        self.pieces.append(piece)

    def _answer(self, command: list[bytes]) -> list[Any]:
        match command:
            case [b"SUBSCRIBE", *channels]:
                self._is_subscribed = True
                return [[b"subscribe", channel, 1] for channel in channels]
            case [b"EXISTS", *keys]:
                return [int(keys[0])]
            case [b"PING"]:
                return [[b"pong", b""] if self._is_subscribed else b"PONG"]
            case _:
                return [b"OK"]

    def sent(self, name: bytes) -> int:
        """How many commands of this name."""
        return sum(command[0] == name for piece in self.pieces for command in piece)

    async def read_response(self) -> Any:
        answer = await self._answers.get()
        if type(answer) is int:
            await self._goes_on.wait()
        return answer

    async def disconnect(self, *, nowait: bool) -> None:
        assert nowait


class FakeServer:
    """Two connections are made to it each time; of keys it tells nothing before `goes_on`."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.connections: list[FakeConnection] = []

    async def open(self) -> FakeConnection:
        self.connections.append(FakeConnection(self.goes_on))
        return self.connections[-1]

    @property
    def listener(self) -> FakeConnection:
        return self.connections[-2]

    @property
    def reader(self) -> FakeConnection:
        return self.connections[-1]

    @property
    def asked(self) -> list[list[list[bytes]]]:
        """What was asked together of keys, or whether it is there; the first thing asked is that changes be told."""
        return self.reader.pieces[1:]


def wire_to(server: FakeServer, *, call_timeout_s: float = PLENTY_S) -> HintWire:
    return HintWire(
        cast(ConnectionSource, server),
        channels=(b"told",),
        call_timeout_s=call_timeout_s,
        on_message=lambda _channel, _content: None,
        on_connected=lambda: None,
    )


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
async def wire(server: FakeServer) -> AsyncIterator[HintWire]:
    """Connected."""
    made = wire_to(server)
    made.start()
    await asyncio.wait_for(made.connected(), 5)
    yield made
    await made.close()


def ask_all(wire: HintWire) -> list[asyncio.Task[list[int] | None]]:
    """As those of as many queues do behind a reconnect."""
    return [asyncio.create_task(wire.watch((str(number),), (str(2 * number),))) for number in range(QUEUES)]


async def test_what_many_ask_goes_together_and_each_has_its_own_answer(server: FakeServer, wire: HintWire) -> None:
    server.goes_on.set()
    async with asyncio.timeout(PLENTY_S):
        answers = await asyncio.gather(*ask_all(wire))
    assert answers == [[number, 2 * number] for number in range(QUEUES)]
    assert len(server.asked) <= 2 * QUEUES / 50
    assert max(map(len, server.asked)) <= 100  # so that the answers to one piece hold up nobody


async def test_a_ping_waits_for_what_is_under_way_only(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else, where very many ask, it would be late, and the connection given up; and then all ask anew."""
    monkeypatch.setattr(hint_wire, "_PING_EVERY_S", 0.01)
    wire = wire_to(server)
    wire.start()
    try:
        async with asyncio.timeout(PLENTY_S):
            await wire.connected()
            asking = ask_all(wire)
            await eventually(lambda: server.reader.sent(b"EXISTS") > 0)
            await eventually(lambda: server.listener.sent(b"PING") > server.reader.sent(b"PING"))
            before = len(server.asked)
            server.goes_on.set()
            await asyncio.gather(*asking)
        assert server.asked[before][0] == [b"PING"]
        assert len(server.connections) == 2
    finally:
        await wire.close()


async def test_who_asked_and_went_away_costs_the_others_nothing(server: FakeServer, wire: HintWire) -> None:
    asking = ask_all(wire)
    async with asyncio.timeout(PLENTY_S):
        await eventually(lambda: server.reader.sent(b"EXISTS") > 0)
        for task in asking[1::2]:
            task.cancel()
        await asyncio.wait(asking[1::2])
        server.goes_on.set()
        answers = await asyncio.gather(*asking[::2])
    assert answers == [[number, 2 * number] for number in range(0, QUEUES, 2)]
    assert len(server.connections) == 2


async def test_when_an_answer_does_not_come_in_time_nobody_waits_for_one(server: FakeServer) -> None:
    wire = wire_to(server, call_timeout_s=0.05)
    wire.start()
    try:
        async with asyncio.timeout(PLENTY_S):
            await wire.connected()
            assert await asyncio.gather(*ask_all(wire)) == [[]] * QUEUES
            await eventually(lambda: len(server.connections) >= 4)
    finally:
        await wire.close()
