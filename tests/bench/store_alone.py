"""What the store does without a service: a script call that a service makes is seen by MONITOR, and sent again and
again by redis-benchmark, pipelined.
"""

from __future__ import annotations

import ast
import asyncio
import re
import subprocess
from collections.abc import Awaitable, Callable

from bench.rig import Bench
from headwayd.store.scripts import all_scripts

PIPELINE, CLIENTS = 16, 4
TIMEOUT_S = 120.0
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"')


def _words(line: bytes) -> list[bytes]:
    """What MONITOR shows of a command; it escapes as a bytes literal does."""
    return [ast.literal_eval(f'b"{word.decode("ascii")}"') for word in _WORD.findall(line)]


def _sayable(word: bytes) -> bytes:
    """As it can be given on a command line: random bytes become as many letters."""
    return word if all(0x20 <= byte < 0x7F for byte in word) else b"r" * len(word)


async def recorded(bench: Bench, script: str, act: Callable[[], Awaitable[object]]) -> list[bytes]:
    """The first call of this script that a service makes meanwhile, as a command."""
    wanted = all_scripts()[script].sha
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.store.port, limit=1 << 24)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            writer.write(b"MONITOR\r\n")
            assert await reader.readline() == b"+OK\r\n"
            await act()
            while True:
                words = _words(await reader.readline())
                if words[:1] == [b"EVALSHA"] and words[1] == wanted:
                    return [_sayable(word) for word in words]
    finally:
        writer.close()


async def store_alone(program: str, bench: Bench, command: list[bytes], calls: int) -> float:
    """Calls per second."""
    shape = ["-p", str(bench.store.port), "-n", str(calls), "-c", str(CLIENTS), "-P", str(PIPELINE), "--csv"]
    words = [word.encode() for word in (program, *shape)] + command
    done = await asyncio.to_thread(subprocess.run, words, capture_output=True, check=True, text=True, timeout=TIMEOUT_S)
    head, *_, line = done.stdout.splitlines()
    columns = head.count('","')  # the first cell is the command itself, and holds whatever it holds
    return float(line.split('","')[-columns])
