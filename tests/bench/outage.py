"""How long nothing is accepted when a primary that Sentinels watch fails under load, and whose time it is: run with
`python -m bench.outage`. Prints a table, and says what was lost or told.

The Sentinels announce every step of a failover, so each instant is theirs. They are told to let silence count after
DETECTION_S, and notice it at any time between that and twice as much. What comes after they agree is to take less than
TARGET_S.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import redis

import headway
from bench.rig import percentile
from cluster.load import Books, Patience, load_on, patient, times_of
from harness import ServiceProcess, eventually
from harness.engines import DETECTION_S, SentinelTrio
from wire.calls import Line, line_at

TARGET_S = 2.0
REPLICATED = ("--min-replicas-to-write", "1", "--min-replicas-max-lag", "10")
# What Sentinels announce, in this order, and what each stands for.
STEPS = {
    "+sdown": "one finds it silent",
    "+odown": "enough do",
    "+elected-leader": "one is to act",
    "+failover-state-wait-promotion": "a replica is told",
    "+promoted-slave": "is seen to be the primary",
    "+switch-master": "is announced",
}


class Events:
    """When each step was first announced, by any Sentinel. A context: listens while it is entered."""

    def __init__(self, trio: SentinelTrio) -> None:
        self.at: dict[str, float] = {}
        self._is_over = False
        self._threads = [
            threading.Thread(target=self._listen, args=(sentinel.client(),), daemon=True) for sentinel in trio.sentinels
        ]

    def _listen(self, client: redis.Redis) -> None:
        with client, client.pubsub() as heard:  # type: ignore[no-untyped-call]
            heard.psubscribe("*")
            while not self._is_over:
                told = heard.get_message(timeout=0.2)
                if told is None or told["type"] != "pmessage":
                    continue
                name = told["channel"].decode()
                if name not in ("+sdown", "-sdown") or told["data"].startswith(b"master "):
                    self.at.setdefault(name, time.monotonic())

    def __enter__(self) -> Events:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        for thread in self._threads:
            thread.join()


@dataclass(slots=True)
class Run:
    """One failover: seconds from the failure to each step, and to the next Put that was accepted."""

    steps: dict[str, float]
    accepted_s: float
    outage_s: float
    books: Books = field(repr=False)
    patience: Patience

    @property
    def after_detection_s(self) -> float:
        """From when Sentinels agree that the primary is gone."""
        return self.accepted_s - self.steps["+odown"]

    @property
    def ours_s(self) -> float:
        """From when Sentinels name another primary to whoever asks."""
        return self.accepted_s - self.steps["+promoted-slave"]


async def one_run(kind: str, how: str, folder: Path, number: int) -> Run:
    """A store, a service and a load of their own, and one failure."""
    trio = SentinelTrio(kind, folder, options=REPLICATED)
    try:
        await asyncio.to_thread(trio.start)
        env = {"HEADWAY_REDIS_URL": trio.url, "HEADWAY_DURABILITY": "replicated", "HEADWAY_LOG_LEVEL": "info"}
        service = ServiceProcess(folder, env=env)
        try:
            await asyncio.to_thread(service.start)
            async with line_at(service.address, f"jobs{number}", grpc.aio.insecure_channel) as line:
                await line.create()
                async with headway.connect(service.address) as client, patient(client.queue(line.name)) as patience:
                    return await _fail(trio, line, how, patience)
        finally:
            service.stop()
    finally:
        await asyncio.to_thread(trio.stop)


async def _fail(trio: SentinelTrio, line: Line, how: str, patience: Patience) -> Run:
    with Events(trio) as events:
        async with load_on(line) as books:
            old = trio.primary
            # Sentinels look once a second: at which moment of it the failure comes must be any.
            await asyncio.sleep(int.from_bytes(os.urandom(2), "big") / 65_536)
            failed_at = time.monotonic()
            old.kill() if how == "kill" else old.pause()
            await eventually(lambda: "+switch-master" in events.at, within=60)
            announced_at = events.at["+switch-master"]
            await eventually(lambda: max(books.accepted.values()) > announced_at, within=30)
            if how == "pause":
                old.resume()
    times = sorted(books.accepted.values())
    outage_s = books.longest_outage_s
    ended_at = next(after for before, after in itertools.pairwise(times) if after - before == outage_s)
    steps = {name: events.at[name] - failed_at for name in STEPS}
    return Run(steps=steps, accepted_s=ended_at - failed_at, outage_s=outage_s, books=books, patience=patience)


def show(how: str, runs: list[Run]) -> None:
    """The table of one way to fail."""
    print(f"\n{how}: {len(runs)} runs; s after the failure    {'p50':>6} {'most':>6}   each, in order")
    for name, meaning in STEPS.items():
        _row(f"{name.lstrip('+')}: {meaning}", [run.steps[name] for run in runs])
    _row("the next Put is accepted", [run.accepted_s for run in runs])
    _row("from one accepted Put to the next", [run.outage_s for run in runs])
    _row("of it after Sentinels agree that the old is gone", [run.after_detection_s for run in runs])
    _row("of it after Sentinels name the new one", [run.ours_s for run in runs])
    _row("longest Put of the Python client", [run.patience.longest_s for run in runs])
    misses = sum(run.after_detection_s > TARGET_S for run in runs)
    long = sum(run.outage_s > DETECTION_S + TARGET_S for run in runs)
    lost = sum(len(run.books.lost) for run in runs)
    accepted = sum(len(run.books.accepted) for run in runs)
    print(f"  longer than detection and {TARGET_S:.0f} s: {misses} of {len(runs)}", end="; ")
    print(f"than {DETECTION_S + TARGET_S:.0f} s in all: {long}; accepted {accepted}, lost {lost}")
    print(f"  Puts that failed for good by the Python client: {sum(len(run.patience.failures) for run in runs)}")
    for run in runs:
        print(f"  told: {times_of(run.books)}")


def _row(name: str, values: list[float]) -> None:
    each = " ".join(f"{value:.2f}" for value in values)
    print(f"  {name:46.46} {percentile(values, 0.5):6.2f} {max(values):6.2f}   {each}")


async def main() -> None:
    """Runs both ways to fail and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--store", choices=("valkey", "redis"), default="valkey")
    parser.add_argument("--how", choices=("kill", "pause"), nargs="*", default=["kill", "pause"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:
        for how in given.how:
            runs = []
            for number in range(given.runs):
                own = Path(folder) / f"{how}{number}"
                own.mkdir()
                runs.append(await one_run(given.store, how, own, number))
            show(how, runs)


if __name__ == "__main__":
    asyncio.run(main())
