"""One run of one peer: all is put, all is got and acknowledged, and then, on another queue, both at once."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench.peers import places
from bench.peers.catalogue import GO, NODE, Peer
from bench.peers.driving import BATCH, UNCONFIRMED, Task
from bench.peers.tally import Tally
from harness import processes

SIZES, CLIENTS = (256, 1024), (1, 50)  # bytes of a message, clients of each kind: what all peers are measured with
READY_S = 60.0
STEP_S = 0.002
LEAST_COUNT = 500  # messages
LINGER_S = 0.3  # what is delivered twice may come late
PUT, TAKE = "put", "take"


@dataclass(frozen=True)
class Cell:
    """What is asked of a peer."""

    count: int
    size: int
    clients: int
    patience_s: float  # a phase that takes longer is given up, and the run marked
    batch: int = BATCH  # messages that go together
    unconfirmed: int = UNCONFIRMED  # messages that each client may have sent, or hold, at once


@dataclass(frozen=True)
class Run:
    """Messages per second of each phase (0: given up), and what was wrong with what was delivered ('' = nothing)."""

    put: float
    take: float
    both: float
    fault: str
    count: int
    aside_s: float = 0.0  # what it took beside its phases: drivers started and stopped, or a phase was given up

    @property
    def rates(self) -> tuple[float, float, float]:
        """Of all phases."""
        return self.put, self.take, self.both


def command_of(peer: Peer, task: Task) -> list[str]:
    """How the driver of a peer is started."""
    words = json.dumps(asdict(task))
    if peer.environment == NODE:
        node = places.program("node")
        return [str(node), str(places.HERE / "drivers" / peer.driver), words]
    if peer.environment == GO:
        return [str(places.program(peer.driver)), words]
    return [str(places.python_of(peer.environment)), "-m", "bench.peers.driving", words]


class Process:
    """One driver process: there is a pipe that it begins by, and lines that it says."""

    def __init__(self, peer: Peer, task: Task, log: Path) -> None:
        os.mkfifo(task.fifo)
        self._fifo, self._log = task.fifo, log
        environment = os.environ | {"PYTHONPATH": str(places.TESTS)}
        command = command_of(peer, task)
        self._process = processes.spawn(command, log=log, stdout=subprocess.PIPE, env=environment)

    def expect(self, word: str, within: float) -> bool:
        """Waits for a line; False if it does not come in time. Fails if the process ends before it."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], max(within, 0))
        if not ready:
            return False
        line = self._process.stdout.readline().decode().strip()
        assert line == word, f"the driver said {line!r} in place of {word!r}\n{processes.tail(self._log)}"
        return True

    def wait_ready(self) -> None:
        """Returns when it is ready."""
        assert self.expect("ready", READY_S), processes.tail(self._log)

    def begin(self) -> None:
        """Lets it begin, which is ready."""
        while not self._has_let_go():
            assert self.is_alive, self.tail()
            time.sleep(STEP_S)

    def _has_let_go(self) -> bool:
        """False if it has not opened the fifo yet: it says that it is ready, and opens then."""
        try:
            os.close(os.open(self._fifo, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return False
        return True

    @property
    def is_alive(self) -> bool:
        """It has not ended."""
        return self._process.poll() is None

    def tail(self) -> str:
        """The end of its log."""
        return processes.tail(self._log)

    def close(self) -> None:
        """Ends it, and what it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        processes.stop(self._process, signal.SIGKILL)


def _begin(them: Sequence[Process]) -> float:
    """Lets all of them begin at once; when that was. None works, untimed, while another one still gets ready."""
    began = time.perf_counter()
    for one in them:
        one.begin()
    return began


class Contest:
    """Runs of one cell on one server."""

    def __init__(self, peer: Peer, cell: Cell, address: str, folder: Path) -> None:
        self.peer, self.cell, self.address, self.folder = peer, cell, address, folder
        self._number = 0
        self._tally: Tally | None = None

    @property
    def done(self) -> int:
        """How many messages of the phase under way are acknowledged."""
        return self._tally.done if self._tally else 0

    def run(self) -> Run:
        """All three phases, each on a queue that was not used before (put and take share one)."""
        began = time.perf_counter()
        put, take, fault = self.one_after_the_other()
        both, another_fault = self.at_once()
        fault = "; ".join(each for each in (fault, another_fault) if each)
        phases_s = sum(self.cell.count / rate for rate in (put, take, both) if rate)
        return Run(put, take, both, fault, self.cell.count, time.perf_counter() - began - phases_s)

    def one_after_the_other(self) -> tuple[float, float, str]:
        """The rates of putting all and of getting all, and what was wrong."""
        queue, tally = self._queue()
        put_s = self._put(queue)
        take_s = self._take(queue, tally) if put_s else 0.0
        return self._rate(put_s), self._rate(take_s), tally.fault()

    def at_once(self) -> tuple[float, str]:
        """The rate of both at once, and what was wrong."""
        queue, tally = self._queue()
        return self._rate(self._both(queue, tally)), tally.fault()

    def _rate(self, took_s: float) -> float:
        return self.cell.count / took_s if took_s else 0.0

    def _queue(self) -> tuple[str, Tally]:
        self._number += 1
        queue = f"bench{self._number}"
        self._tally = Tally.made(self.folder / f"{queue}.tally", self.cell.count)
        return queue, self._tally

    def _task(self, queue: str, role: str, first: int, clients: int) -> Task:
        return Task(
            driver=self.peer.driver,
            role=role,
            address=self.address,
            queue=queue,
            count=self.cell.count,
            size=self.cell.size,
            clients=clients,
            first=first,
            of=self.cell.clients,
            fifo=str(self.folder / f"{queue}-{role}-{first}.fifo"),
            tally=str(self.folder / f"{queue}.tally"),
            batch=self.cell.batch,
            unconfirmed=self.cell.unconfirmed,
            options=dict(self.peer.options) | {"modules": str(places.NODE / "package.json")},
        )

    @contextmanager
    def _processes(self, queue: str, role: str) -> Iterator[list[Process]]:
        """So many as the peer has in this role, all ready and none begun."""
        total, spread = self.cell.clients, self.peer.producers if role == PUT else self.peer.consumers
        among = spread(total)
        with ExitStack() as stack:
            them = []
            for n in range(among):
                first, end = total * n // among, total * (n + 1) // among
                task = self._task(queue, role, first, end - first)
                one = Process(self.peer, task, self.folder / f"{queue}-{role}-{n}.log")
                stack.callback(one.close)
                them.append(one)
            for one in them:
                one.wait_ready()
            yield them

    def _put(self, queue: str) -> float:
        """Seconds until all is confirmed; 0 if that took too long."""
        with self._processes(queue, PUT) as producers:
            began = _begin(producers)
            for one in producers:
                if not one.expect("done", self.cell.patience_s - (time.perf_counter() - began)):
                    return 0.0
            return time.perf_counter() - began

    def _take(self, queue: str, tally: Tally) -> float:
        """Seconds until all is acknowledged; 0 if that took too long."""
        with self._processes(queue, TAKE) as consumers:
            return self._completed(tally, _begin(consumers), consumers)

    def _both(self, queue: str, tally: Tally) -> float:
        """Seconds from the first put until all is acknowledged, consumers being there before."""
        with self._processes(queue, TAKE) as consumers:
            _begin(consumers)
            with self._processes(queue, PUT) as producers:
                return self._completed(tally, _begin(producers), consumers, producers)

    def _completed(
        self, tally: Tally, began: float, consumers: list[Process], producers: Sequence[Process] = ()
    ) -> float:
        while not tally.is_complete:
            if time.perf_counter() - began > self.cell.patience_s:
                return 0.0
            for one in consumers:
                assert one.is_alive, f"a consumer has ended\n{one.tail()}"
            # One that ends without having said that it is done fails the run: what it did not put is not missing.
            producers = [one for one in producers if one.is_alive or not one.expect("done", 0)]
            time.sleep(STEP_S)
        took = time.perf_counter() - began
        time.sleep(LINGER_S)
        return took


def sized(cell: Cell, run: Run, seconds: float) -> Cell:
    """The same with so many messages as the phases of a run did in these seconds on average, and not more than before.
    A phase that was given up is as slow as that says, at best. Never fewer than some hundred, however
    long they take: there would be nothing to measure."""
    rates = [rate or run.count / cell.patience_s for rate in run.rates]
    fitting = int(len(rates) * seconds / sum(1 / rate for rate in rates)) // 100 * 100
    return replace(cell, count=min(cell.count, max(LEAST_COUNT, fitting)))
