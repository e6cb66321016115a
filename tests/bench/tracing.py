"""What tracing costs a service, by the time of its processor: part of `make bench`. Prints two tables.

All services run on one store and take turns, so that what else the machine does falls on all of them alike. Off is
there twice: the difference between the two is how much such a figure can be trusted.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from bench.rig import Bench, Stub, cpu_s, started
from bench.tables import Table, arguments, made_by, spread, write
from harness import ServiceProcess
from harness.otlp import OtlpReceiver
from headway.v1 import message_pb2
from headway.v1 import queue_service_pb2 as pb
from headwayd.domain.limits import Limits
from headwayd.domain.model import PutCode, PutOrder, PutOutcome
from headwayd.rpc.edge import Gate, _unary, _Way, service_handlers
from headwayd.rpc.queue_servicer import QueueServicer
from headwayd.rpc.server import QUEUE_SERVICE

OFF = "off"
VARIANTS: Mapping[str, float | None] = {OFF: None, "off, once more": None, "0": 0.0, "0.01": 0.01, "1": 1.0}
CALLS_OF_A_JOB = 3
AT_ONCE = 16
TIMEOUT_S = 20.0
US_PER_S = 1_000_000


# -- whole services ---------------------------------------------------------------------------------------------------


async def jobs(stub: Stub, queue: str, seconds: float) -> int:
    """Puts, gets and acks, one job after the other in each of AT_ONCE tasks. How many were done."""
    until, done = time.monotonic() + seconds, 0

    async def go_on(task: int) -> None:
        nonlocal done
        count = 0
        while time.monotonic() < until:
            count += 1
            message = message_pb2.Message(id=f"{task}-{count}-{until}", payload=bytes(100))
            await stub.Put(pb.PutRequest(queue=queue, messages=[message]), timeout=TIMEOUT_S)
            answer = await stub.Get(pb.GetRequest(queue=queue), timeout=TIMEOUT_S)
            leases = [each.lease for each in answer.deliveries]
            await stub.Ack(pb.AckRequest(queue=queue, leases=leases), timeout=TIMEOUT_S)
            done += 1

    await asyncio.gather(*map(go_on, range(AT_ONCE)))
    return done


async def cost_us(service: ServiceProcess, stub: Stub, queue: str, seconds: float) -> float:
    """Processor time of the service for each call of such jobs."""
    before = cpu_s(service.pid)
    done = await jobs(stub, queue, seconds)
    return (cpu_s(service.pid) - before) / (done * CALLS_OF_A_JOB) * US_PER_S


def settings(ratio: float | None, endpoint: str) -> dict[str, str]:
    """Of a service that records this share of jobs; None: tracing is off."""
    return {} if ratio is None else {"HEADWAY_OTLP_ENDPOINT": endpoint, "HEADWAY_TRACE_RATIO": str(ratio)}


async def measure(rounds: int, seconds: float) -> Mapping[str, Sequence[float]]:
    """Microseconds a call, for each variant and round."""
    found: dict[str, list[float]] = {name: [] for name in VARIANTS}
    async with OtlpReceiver() as receiver, AsyncExitStack() as stack:
        benches: dict[str, Bench] = {}
        for name, ratio in VARIANTS.items():
            benches[name] = await stack.enter_async_context(started(1, **settings(ratio, receiver.endpoint)))
        for name, bench in benches.items():
            await bench.stubs[0].Create(pb.CreateRequest(queue=name))
            await jobs(bench.stubs[0], name, 1.0)
        for _ in range(rounds):
            for name, bench in benches.items():
                found[name].append(await cost_us(bench.services[0], bench.stubs[0], name, seconds))
            receiver.spans.clear()
            receiver.raw.clear()
    return found


# -- the way of one call, without gRPC and store ----------------------------------------------------------------------


class _Engine:
    """Accepts every Put at once."""

    limits = Limits()

    def check_name(self, name: str) -> None: ...

    async def put(self, order: PutOrder, *, budget_s: float) -> Sequence[PutOutcome]:
        return [PutOutcome(PutCode.QUEUED, "id", 1, 1)]


class _Context:
    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def time_remaining(self) -> float:
        return 10.0


async def way_us(handle: Callable[[Any, Any], Awaitable[Any]], calls: int) -> float:
    """Microseconds of this process for one call of a handler."""
    request, context = pb.PutRequest(queue="q", messages=[message_pb2.Message(payload=bytes(100))]), _Context()
    began = time.process_time()
    for _ in range(calls):
        await handle(request, context)
    return (time.process_time() - began) / calls * US_PER_S


async def ways(rounds: int, calls: int = 5_000) -> Mapping[str, Sequence[float]]:
    """The way of a Put past everything that tracing knows of, and as a service takes it whose tracing is off."""
    servicer: Any = QueueServicer(_Engine())  # type: ignore[arg-type] # what a Put needs of one
    gate, most_bytes = Gate(_Engine.limits), _Engine.limits.max_request_bytes
    served: Any = service_handlers(servicer, QUEUE_SERVICE, gate=gate, max_request_bytes=most_bytes)
    past: Any = _unary(_Way("/headway.v1.QueueService/Put", servicer.Put, gate, None))
    handles = {"past tracing": past, "tracing off": served["/headway.v1.QueueService/Put"].unary_unary}
    found: dict[str, list[float]] = {name: [] for name in handles}
    for _ in range(rounds):
        for name, handle in handles.items():
            found[name].append(await way_us(handle, calls))
    return found


async def main() -> None:
    """Measures what the command line asks for."""
    parser = arguments((__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="for each service and round")
    parser.add_argument("--rounds", type=int, default=7, help="in which the services take turns")
    options = parser.parse_args()
    way = Table(
        "Tracing off: the way of a Put through the edge, without gRPC, engine and store",
        ["way", "µs a call"],
        f"Median and range of {options.rounds} rounds of 5,000 calls.",
    )
    for name, costs in (await ways(options.rounds)).items():
        way.add(name, spread(costs))
    whole = Table(
        "Tracing: processor time of the service for a call",
        ["recorded share", "µs a call", "more than off, µs"],
        f"Put, Get and Ack of one message each, {AT_ONCE} at a time; median and range of {options.rounds} rounds.",
    )
    found = await measure(options.rounds, options.seconds)
    base = statistics.median(found[OFF])
    for name, costs in found.items():
        whole.add(name, spread(costs), "" if name == OFF else f"{statistics.median(costs) - base:+.1f}")
    write(options.markdown, "bench-tracing", made_by("bench", "bench.tracing"), [way, whole])


if __name__ == "__main__":
    asyncio.run(main())
