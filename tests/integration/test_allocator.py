"""A running service keeps the memory of one large request for the next: seen by its page faults."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import grpc.aio
import pytest

from harness import ServiceProcess, StoreServer
from headway.v1 import queue_service_pb2 as pb
from headway.v1.message_pb2 import Message
from headway.v1.queue_service_pb2_grpc import QueueServiceStub

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator is told anything")

PUTS, PUT_BYTES = 30, 1_000_000
MESSAGES = [Message(payload=b"x" * 10_000) for _ in range(PUT_BYTES // 10_000)]


def minor_faults(pid: int) -> int:
    """How often the process met a page that it had not, and that was not read from a disk."""
    after_the_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(after_the_name[7])


async def faults_of_a_put(address: str, pid: int, connect: Callable[[str], grpc.aio.Channel]) -> float:
    """Minor page faults for each Put of a megabyte, when the process has seen some."""
    seen = []
    async with connect(address) as channel:
        stub = QueueServiceStub(channel)
        await stub.Create(pb.CreateRequest(queue="large"))
        for _ in range(2):
            for _ in range(PUTS):
                await stub.Put(pb.PutRequest(queue="large", messages=MESSAGES))
            seen.append(minor_faults(pid))
        await stub.Delete(pb.DeleteRequest(queue="large"))
    return (seen[1] - seen[0]) / PUTS


async def test_a_service_keeps_what_was_freed_unless_its_environment_says_otherwise(
    make_service: Callable[..., ServiceProcess],
    store_server: StoreServer,
    connect: Callable[[str], grpc.aio.Channel],
    prefix: str,
    figure: Callable[[str, object], None],
) -> None:
    own = {"HEADWAY_REDIS_URL": store_server.url, "PRESSURE_PREFIX": f"{prefix}-large"}
    kept = make_service(**own)
    as_it_is = make_service(**own, MALLOC_TRIM_THRESHOLD_="131072")
    faults = [await faults_of_a_put(service.address, service.pid, connect) for service in (kept, as_it_is)]
    figure("page faults of a Put of 1 MB, memory kept / as glibc has it", f"{faults[0]:.1f} / {faults[1]:.1f}")
    assert faults[0] < faults[1] / 4
