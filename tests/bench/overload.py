"""What a service does with ten times the calls that it can take: run with `make bench`. Prints a table, and says where
a figure misses its target.

First the peak: always so many unary Puts of 100 bytes in flight. Then two and ten times as many are offered as were
done; each call has a deadline of five seconds, and what is answered later is not counted. Clients are as the protocol
asks for: 400 of them, each with at most 50 calls in flight, and none for as long as it was told to stay away; so they
could have 20,000 calls in flight. A flood is an open loop of somebody who goes on whatever comes back: nobody's client,
and the most that one can do to a service. It is kept out after a second or two, until it is over: before each one
it has been over for long enough, so that each begins as the first one did.

Beside it three clients ask every 20 ms for health. By gRPC h2load, whose times are judged, and grpcio, which also sees
whether a check failed: its library wakes several threads for an answer, so on busy cores its times are its own as much
as the service's. By HTTP over a new connection each time, as a kubelet asks. The largest flood comes several times,
since no two are alike: what counts is the median. The load comes from one more process, which runs at a lower priority
than the service: it stands for machines that are not this one, but a flood takes a core all the same.
`BENCH_SETTINGS="HEADWAY_MAX_PENDING_CALLS=3000"` sets another bound on calls that wait to be accepted.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from base64 import b64encode
from contextlib import suppress
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bench import h2load
from bench.http2_load import Plan, Tally
from bench.rig import cpu_s, percentile, started
from bench.tables import no_arguments, spread
from harness import ServiceProcess
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Message
from headwayd.rpc.narrowing import CALM_S

QUEUE = "load"
CHECK = "/grpc.health.v1.Health/Check"
PEAK_S, LOAD_S, FLOOD_S = 8.0, 15.0, 30.0
REST_S = 3 * CALM_S
IN_FLIGHT = (100, 500)
TIMES = 10
FLOODS = 5
FEW_STREAMS = 150
CLIENTS = 400
PROBE_EVERY_S, PROBE_TIMEOUT_S = 0.02, 10.0
NICENESS = 10
GOODPUT_TARGET, HEALTH_TARGET_MS, GROWTH_TARGET_MIB = 0.8, 100.0, 300.0
_MIB = 1024 * 1024


async def _load(plan: Plan) -> Tally:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.http2_load"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        preexec_fn=lambda: os.nice(NICENESS),
    )
    out, _ = await process.communicate(json.dumps(asdict(plan)).encode())
    assert process.returncode == 0, f"the load ended with {process.returncode}"
    return Tally(**json.loads(out))


class Beside:
    """Looks at the service's memory and asks for health while the block lasts, by h2load for so many seconds; without
    that program by the others alone."""

    def __init__(self, service: ServiceProcess, seconds: float, program: str | None) -> None:
        self._address, self._http = service.address, urlsplit(service.http)
        self._process = psutil.Process(service.pid)
        self._seconds, self._program = seconds, program
        self.grpcio_ms: list[float] = []
        self.h2load_ms: list[float] = []
        self.http_ms: list[float] = []
        self.failed = self.failed_http = 0
        self.most_mib = 0.0
        self.cpu_s = 0.0

    @property
    def mib(self) -> float:
        """What the service has in memory now."""
        return float(self._process.memory_info().rss / _MIB)

    async def _ask(self, stub: Any) -> None:
        began = time.perf_counter()
        try:
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=PROBE_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            self.failed += 1
        self.grpcio_ms.append((time.perf_counter() - began) * 1_000)

    async def _ask_by_http(self) -> None:
        """By hand: a library's client took a tenth of a core for it, which would be missing elsewhere."""
        began = time.perf_counter()
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(self._http.hostname, self._http.port)
                writer.write(
                    f"GET /readyz HTTP/1.1\r\nhost: {self._http.hostname}\r\nconnection: close\r\n\r\n".encode()
                )
                is_well = (await reader.read()).startswith(b"HTTP/1.1 200 ")
                writer.close()
        except OSError:  # a timeout is one
            is_well = False
        self.failed_http += not is_well
        self.http_ms.append((time.perf_counter() - began) * 1_000)

    async def _run(self) -> None:
        async with grpc.aio.insecure_channel(self._address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            async with asyncio.TaskGroup() as asks:
                while True:
                    asks.create_task(self._ask(stub))
                    asks.create_task(self._ask_by_http())
                    self.most_mib = max(self.most_mib, self.mib)
                    await asyncio.sleep(PROBE_EVERY_S)

    async def _ask_by_h2load(self) -> None:
        per_second = round(1 / PROBE_EVERY_S)
        end = time.perf_counter() + self._seconds
        while self._program is not None and time.perf_counter() < end:  # a connection may be told to go away
            shape = {"calls": per_second, "per_second": per_second}
            times, failed = await h2load.times_ms(self._program, self._address, CHECK, b"", **shape)
            self.h2load_ms += times
            self.failed += failed

    @property
    def health_ms(self) -> list[float]:
        """How long checks by gRPC took, as the service's callers see it."""
        return self.h2load_ms or self.grpcio_ms

    async def __aenter__(self) -> Beside:
        self._task = asyncio.create_task(self._run())
        self._stock = asyncio.create_task(self._ask_by_h2load())
        self._cpu_before_s = cpu_s(self._process.pid)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cpu_s = cpu_s(self._process.pid) - self._cpu_before_s
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self._stock


def _row(name: str, tally: Tally, seconds: float, beside: Beside) -> None:
    health = " ".join(
        f"{percentile(times, 0.5):10.1f} {percentile(times, 0.99):8.1f}"
        for times in (beside.health_ms, beside.grpcio_ms, beside.http_ms)
    )
    refused = " ".join(f"{code}:{count}" for code, count in sorted(tally.statuses.items())) or "none"
    print(
        f"{name:22} {tally.offered / seconds:9.0f} {tally.in_time / seconds:8.0f} {tally.p50_ms:8.1f} "
        f"{tally.p99_ms:8.1f} {beside.cpu_s / seconds * 100:6.0f} {health} {beside.failed:5} {beside.failed_http:5}  "
        f"{refused} ({tally.with_details} with details), late {tally.too_late}, unanswered {tally.unanswered}, "
        f"unsent {tally.offered - tally.sent}"
    )


def _verdict(text: str, is_met: bool) -> None:
    print(f"{text}{'' if is_met else '  MISSES'}")


async def main() -> None:
    """Prints the tables."""
    program = h2load.installed()
    loads = [(2, CLIENTS), (TIMES, CLIENTS), (2, 0), *[(TIMES, 0)] * FLOODS]
    await _overloaded({}, loads, program)
    print(f"\nWith --max-streams-per-connection {FEW_STREAMS}")
    few = {"HEADWAY_MAX_STREAMS_PER_CONNECTION": str(FEW_STREAMS)}
    await _overloaded(few, [(TIMES, 0)] * FLOODS, program)


async def _overloaded(settings: dict[str, str], wanted: list[tuple[int, int]], program: str | None) -> None:
    """A service of its own: its peak, then so many times that, by so many clients or as a flood. Prints a table."""
    async with started(1, HEADWAY_HTTP_LISTEN="127.0.0.1:0", **settings) as bench:
        service, stub = bench.services[0], bench.stubs[0]
        await stub.Create(pb.CreateRequest(queue=QUEUE))
        request = pb.PutRequest(queue=QUEUE, messages=[Message(payload=b"x" * 100)])
        port = int(service.address.rpartition(":")[2])
        common: dict[str, Any] = {
            "port": port,
            "path": "/headway.v1.QueueService/Put",
            "request": b64encode(request.SerializeToString()).decode(),
        }
        await _load(Plan(**common, seconds=2.0))  # warm
        print(
            f"{'':22} {'offered/s':>9} {'good/s':>8} {'p50 ms':>8} {'p99 ms':>8} {'core %':>6} {'health p50':>10} "
            f"{'p99':>8} {'grpcio p50':>10} {'p99':>8} {'http p50':>10} {'p99':>8} {'fail':>5} {'http':>5}  "
            "refused by status"
        )
        peaks = []
        for in_flight in IN_FLIGHT:
            async with Beside(service, PEAK_S, program) as beside:
                peaks.append(await _load(Plan(**common, seconds=PEAK_S, in_flight=in_flight)))
            _row(f"{in_flight} in flight", peaks[-1], PEAK_S, beside)
        peak = max(one.in_time for one in peaks) / PEAK_S
        before_mib, most_mib = beside.mib, 0.0
        loads: dict[str, list[tuple[float, Beside]]] = {}  # with how many were good a second
        for times, clients in wanted:
            name = f"{times} times, {'clients' if clients else 'flood'}"
            if not clients:
                await asyncio.sleep(REST_S)
            seconds = LOAD_S if clients else FLOOD_S
            async with Beside(service, seconds, program) as beside:
                load = await _load(Plan(**common, seconds=seconds, rate=times * peak, clients=clients))
            _row(name, load, seconds, beside)
            loads.setdefault(name, []).append((load.in_time / seconds, beside))
            most_mib = max(most_mib, beside.most_mib)
        after_mib = beside.mib
        async with Beside(service, PEAK_S, program) as again:
            later = await _load(Plan(**common, seconds=PEAK_S, in_flight=IN_FLIGHT[0]))
        _row(f"{IN_FLIGHT[0]} in flight, again", later, PEAK_S, again)
        print()
        for name, runs in loads.items():
            ratios = [good / peak for good, _ in runs]
            goodput = ", ".join(f"{ratio:.2f}" for ratio in sorted(ratios))
            _verdict(f"{name}: goodput ÷ peak {goodput}", statistics.median(ratios) >= GOODPUT_TARGET)
            checks = {
                "gRPC": [(beside.health_ms, beside.failed) for _, beside in runs],
                "HTTP": [(beside.http_ms, beside.failed_http) for _, beside in runs],
            }
            for way, each in checks.items():
                p99s, failed = [percentile(times, 0.99) for times, _ in each], sum(failed for _, failed in each)
                most = max(max(times) for times, _ in each)
                health = f"{name}: health by {way}, p99 {spread(p99s)} ms, at most {most:.0f}, {failed} failed"
                _verdict(health, statistics.median(p99s) <= HEALTH_TARGET_MS)
        _verdict(
            f"service memory before, most, after: {before_mib:.0f}, {most_mib:.0f}, {after_mib:.0f} MiB",
            most_mib - before_mib <= GROWTH_TARGET_MIB,
        )


if __name__ == "__main__":
    no_arguments(__doc__ or "")
    asyncio.run(main())
