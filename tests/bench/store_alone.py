"""What the store does without a service: all that a service asks of one store under load is seen by MONITOR, and asked
of another one again, in the same order, by somebody who sends as fast as it is taken and looks at no answer.

Whatever is random in a step comes from the service. So on the other store, too, the same messages are leased in each
step and the same leases acknowledged by another, and at the end it stands as the first one did, which is looked at.
MONITOR slows what it watches, so a little more may go together than without it.

And one call of a script, as an idle service makes it, is sent over and over by redis-benchmark, in pipelines.
"""

from __future__ import annotations

import ast
import asyncio
import re
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import redis

from bench.rig import Bench
from harness import StoreServer
from headwayd.store.keys import OWN
from headwayd.store.packing import pack
from headwayd.store.scripts import all_scripts

SCRIPTS = ("create", "put", "get", "ack")  # what messages go through; what is asked besides is left out
TIMEOUT_S = 120.0
CLIENTS, PIPELINE = 4, 16  # of redis-benchmark
_AT_ONCE = 1 << 20  # bytes
_END = b"that was all\r\n"  # behind the last answer
_LINE = re.compile(rb"\+[\d.]+ \[\d+ ([^]]+)\] (.+)")
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')

Words = Sequence[bytes]
Standing = tuple[int, ...]


@dataclass(frozen=True)
class Recording:
    """What was asked of the store for a queue of its own, until the first Get and from there on, and how the queue
    stood at the end."""

    puts: Sequence[Words]
    takes: Sequence[Words]
    left: Standing

    @property
    def base(self) -> bytes:
        """The key of the queue."""
        return self.puts[0][3]


def _words(said: bytes) -> list[bytes]:
    """Of a command; MONITOR escapes as a bytes literal does."""
    return [ast.literal_eval(f'b"{word.decode("ascii")}"') for word in _WORD.findall(said)]


def asked(log: bytes) -> list[Words]:
    """Of all that MONITOR has said the calls of these scripts, as they were carried out. The first word of a
    transaction is told when it comes, and the others when it is carried out, behind calls of others maybe: there it
    stands as a whole."""
    wanted = {all_scripts()[name].sha for name in SCRIPTS}
    calls: list[Words] = []
    begun: dict[bytes, list[Words]] = {}
    for line in log.split(b"\r\n"):
        found = _LINE.fullmatch(line)
        if found is None or found[1] == b"lua":
            continue
        who, words = found[1], _words(found[2])
        if words[0] == b"MULTI":
            begun[who] = [words]
        elif who in begun:
            begun[who].append(words)
            if words[0] == b"EXEC":
                calls += begun.pop(who)
        elif words[0] == b"EVALSHA" and words[1] in wanted:
            calls.append(words)
    return calls


def steps(calls: Sequence[Words]) -> int:
    """How many calls for messages these are; one through a gate has two, and the plain command between them."""
    create = all_scripts()["create"].sha
    called = sum(words[0] == b"EVALSHA" and words[1] != create for words in calls)
    return called - sum(words[0] == b"LPUSHX" for words in calls)


def _standing(raw: redis.Redis, base: bytes) -> Standing:
    """How many messages wait, how many are leased by themselves, and how many bundles of them."""
    name = base.decode()
    return raw.llen(name), raw.zcard(name + OWN["leases"]), raw.zcard(name + OWN["bundle_at"])


async def _asked_meanwhile(bench: Bench, act: Callable[[], Awaitable[object]]) -> list[Words]:
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.store.port)
    with closing(writer):
        writer.write(b"MONITOR\r\n")
        assert await reader.readline() == b"+OK\r\n"
        said = asyncio.create_task(reader.read())
        try:
            await act()
            writer.write(b"QUIT\r\n")
            return asked(await asyncio.wait_for(said, TIMEOUT_S))
        finally:
            said.cancel()


async def recorded(bench: Bench, load: Callable[[], Awaitable[object]]) -> Recording:
    """What is asked of the store while this load puts messages into a queue that it makes, and then gets them."""
    calls, get = await _asked_meanwhile(bench, load), all_scripts()["get"].sha
    first = next(n for n, words in enumerate(calls) if words[:2] == [b"EVALSHA", get])
    return Recording(calls[:first], calls[first:], _standing(bench.raw, calls[0][3]))


async def by_redis_benchmark(
    program: str, bench: Bench, script: str, act: Callable[[], Awaitable[object]], calls: int
) -> float:
    """Calls per second of the one that `act` makes, once, of this script: so often, with random bytes of it become
    letters."""
    wanted = all_scripts()[script].sha
    words = next(words for words in await _asked_meanwhile(bench, act) if words[:2] == [b"EVALSHA", wanted])
    sayable = [word if all(0x20 <= byte < 0x7F for byte in word) else b"r" * len(word) for word in words]
    shape = ["-p", str(bench.store.port), "-n", str(calls), "-c", str(CLIENTS), "-P", str(PIPELINE), "--csv"]
    line = [word.encode() for word in (program, *shape)] + sayable
    done = await asyncio.to_thread(subprocess.run, line, capture_output=True, check=True, text=True, timeout=TIMEOUT_S)
    head, *_, told = done.stdout.splitlines()
    columns = head.count('","')  # the first cell is the command itself, and holds whatever it holds
    return float(told.split('","')[-columns])


@contextmanager
def another_store(bench: Bench) -> Iterator[StoreServer]:
    """One of the same kind that no service uses. Scripts look whether a service is there, so somebody listens as those
    of `bench` do."""
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:
        store = StoreServer(bench.store.kind, Path(folder), durable=bench.store.durable)
        try:
            store.start()
            with store.client() as raw, raw.pubsub() as listening:
                for name in SCRIPTS:
                    raw.script_load(all_scripts()[name].text)
                listening.subscribe(*bench.raw.pubsub_channels())
                yield store
        finally:
            store.stop()


async def asked_again(store: StoreServer, recording: Recording, messages: int) -> tuple[float, float]:
    """Seconds for putting so many messages, and for the rest, on an empty store."""
    with store.client(timeout_s=TIMEOUT_S) as raw:
        raw.flushall()
        puts_s = await _seconds(store, recording.puts)
        length = raw.llen(recording.base.decode())
        assert length == messages, f"{length} of {messages} were put"
        takes_s = await _seconds(store, recording.takes)
        left = _standing(raw, recording.base)
    assert left == recording.left, f"{left} were left, not {recording.left}"
    return puts_s, takes_s


async def _seconds(store: StoreServer, calls: Sequence[Words]) -> float:
    whole = b"".join(chain.from_iterable(map(pack, (*calls, (b"ECHO", _END.strip())))))
    reader, writer = await asyncio.open_connection("127.0.0.1", store.port, limit=_AT_ONCE)
    with closing(writer):
        async with asyncio.timeout(TIMEOUT_S):
            began, end = time.perf_counter(), b""
            writer.write(whole)
            while end != _END:
                answers = await reader.read(_AT_ONCE)
                assert answers, "the store has hung up"
                end = (end + answers)[-len(_END) :]
            return time.perf_counter() - began
