"""A service has its connections read by threads that need nothing of Python: seen by how often these wake."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path

import grpc.aio
import pytest

from harness import ServiceProcess, StoreServer
from headway.v1 import admin_service_pb2 as pb
from headway.v1.admin_service_pb2_grpc import AdminServiceStub

pytestmark = [
    pytest.mark.true_start,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how often a thread woke"),
]

CALLS = 300


def wakings(pid: int) -> int:
    """How often the threads of gRPC's event engine went on after they had waited."""
    count = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # one that is not needed ends
            told = dict(line.split(":", 1) for line in (thread / "status").read_text().splitlines())
            if told["Name"].strip() == "event_engine":
                count += int(told["voluntary_ctxt_switches"])
    return count


async def wakings_of(address: str, pid: int, connect: Callable[[str], grpc.aio.Channel]) -> int:
    """Of that many calls, one after the other, when the connection is open."""
    async with connect(address) as channel:
        stub = AdminServiceStub(channel)
        for _ in range(3):
            await stub.GetServerInfo(pb.GetServerInfoRequest())
        before = wakings(pid)
        for _ in range(CALLS):
            await stub.GetServerInfo(pb.GetServerInfoRequest())
        return wakings(pid) - before


@pytest.fixture(autouse=True)
def _nothing_asked_of_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRPC_EXPERIMENTS", raising=False)


async def test_connections_are_read_whatever_python_does_unless_the_environment_says_otherwise(
    make_service: Callable[..., ServiceProcess],
    store_server: StoreServer,
    connect: Callable[[str], grpc.aio.Channel],
    prefix: str,
    figure: Callable[[str, object], None],
) -> None:
    own = {"HEADWAY_REDIS_URL": store_server.url, "PRESSURE_PREFIX": f"{prefix}-threads"}
    by_own_threads = make_service(**own)
    by_who_looks = make_service(**own, GRPC_EXPERIMENTS="-event_engine_listener")
    count = [await wakings_of(service.address, service.pid, connect) for service in (by_own_threads, by_who_looks)]
    figure(f"wakings of the event engine for {CALLS} calls, ours / switched off", f"{count[0]} / {count[1]}")
    assert count[0] > CALLS
    assert count[1] < count[0] / 2
