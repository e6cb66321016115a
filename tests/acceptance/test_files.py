"""The first thing a newcomer does, as a shell does it: files through a queue, and a worker that is killed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import ServiceProcess, eventually, processes
from headway.v1 import queue_service_pb2 as pb
from headway.v1 import queue_service_pb2_grpc

FILES = 2_000
JOBS = 4
LEASE_S = 3


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    for number in range(FILES):
        path = folder / str(number % 20) / f"file number {number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"contents of {number}\n".encode() * (number % 7))
    return folder


def headway(service: ServiceProcess, *words: str) -> list[str]:
    return [sys.executable, "-m", "headway.cli", "--address", service.address, *words]


def put_all(service: ServiceProcess, files: Path) -> None:
    find = subprocess.Popen(["find", ".", "-type", "f"], cwd=files, stdout=subprocess.PIPE)
    subprocess.run(headway(service, "put", "files", "--lines"), stdin=find.stdout, check=True, timeout=60)
    assert find.wait(10) == 0


def start_worker(service: ServiceProcess, files: Path, out: Path, *flags: str) -> subprocess.Popen[bytes]:
    command = headway(service, "work", "files", "-j", str(JOBS), *flags, "--", "sh", "-c", 'sha256sum "$(cat)"')
    return processes.spawn(command, log=out.with_suffix(".log"), stdout=out.open("ab"), cwd=files)


def sums_of(files: Path) -> list[str]:
    """What sha256sum says directly."""
    return sorted(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  ./{path.relative_to(files)}"
        for path in files.rglob("*")
        if path.is_file()
    )


async def is_empty(service: ServiceProcess, connect: Callable[..., object]) -> bool:
    async with connect(service.address) as channel:  # type: ignore[attr-defined]
        stub = queue_service_pb2_grpc.QueueServiceStub(channel)
        counts = (await stub.Describe(pb.DescribeRequest(queue="files"))).queue.counts
        return bool(counts.acked == FILES and counts.length == counts.leased == counts.delayed == 0)


@pytest.mark.slow
async def test_every_file_comes_out_once_as_if_there_were_no_queue(
    make_service: Callable[..., ServiceProcess], connect: Callable[..., object], files: Path, tmp_path: Path
) -> None:
    service = make_service()
    await asyncio.to_thread(put_all, service, files)
    out = tmp_path / "sums"
    worker = start_worker(service, files, out)
    await eventually(lambda: is_empty(service, connect), within=90)
    worker.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(worker.wait, 10) == 0
    assert sorted(out.read_text().splitlines()) == sums_of(files)


@pytest.mark.slow
async def test_a_worker_killed_half_way_loses_no_file_and_repeats_at_most_what_it_held(
    make_service: Callable[..., ServiceProcess], connect: Callable[..., object], files: Path, tmp_path: Path
) -> None:
    service = make_service()
    await asyncio.to_thread(put_all, service, files)
    out = tmp_path / "sums"
    worker = start_worker(service, files, out, "--lease", str(LEASE_S))
    await eventually(lambda: out.exists() and out.read_bytes().count(b"\n") > FILES // 2, within=60)
    os.kill(worker.pid, signal.SIGKILL)
    await asyncio.to_thread(worker.wait, 10)
    second = start_worker(service, files, out, "--lease", str(LEASE_S))
    await eventually(lambda: is_empty(service, connect), within=90)
    second.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(second.wait, 10) == 0
    lines = Counter(out.read_text().splitlines())
    assert sorted(lines) == sums_of(files)
    assert sum(lines.values()) - FILES <= JOBS
