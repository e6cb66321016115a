"""`headway top`, run as a program: a snapshot, a stream of lines, a picture at a terminal."""

import asyncio
import json
import termios
from typing import Any

import grpc
import pytest

import headway
from client.conftest import CommandLine, Terminal
from client.fake_service import Failure, FakeQueue, FakeService
from headway.v1.queue_pb2 import Counts


@pytest.fixture
def queues(service: FakeService) -> dict[str, FakeQueue]:
    """Three queues, each of which has the most of something."""
    numbers = {
        "mail": Counts(length=30, leased=2, delayed=1, put_rate=2.25, consumers_waiting=4),
        "jobs": Counts(length=200, dead=1),
        "main": Counts(leased=5, delayed=7, ack_rate=0.5),
    }
    for name, counts in numbers.items():
        service.queues[name] = made = FakeQueue(name, headway.Policy(), more_counts=counts)
        if name == "mail":
            made.policy.limit = 3
            made.eta_seconds = 200
            counts.oldest_age.FromSeconds(7500)
    service.queues["jobs"].paused = True
    return service.queues


def _names(out: bytes) -> list[str]:
    return [line.split()[0] for line in out.decode().splitlines()[1:]]


async def _record(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    async with asyncio.timeout(30):
        told: dict[str, Any] = json.loads(await process.stdout.readline())
    return told


async def _put(service: FakeService, name: str) -> None:
    service.queues[name].more_counts.length += 1
    await service.notify()


async def test_without_a_terminal_it_is_a_snapshot(queues: dict[str, FakeQueue], command_line: CommandLine) -> None:
    finished = await command_line.run("top")
    assert finished.code == 0
    assert _names(finished.out) == ["jobs", "mail", "main"]
    head, jobs, mail, _ = (line.split() for line in finished.out.decode().splitlines())
    assert head[:3] == ["queue", "length", "leased"]
    assert jobs[-1] == "paused"
    assert mail == ["mail", "30", "2/3", "1", "0", "2", "h", "2.2", "0.0", "4", "open"]


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("name", ["jobs", "mail", "main"]),
        ("length", ["jobs", "mail", "main"]),
        ("leased", ["main", "mail", "jobs"]),
        ("delayed", ["main", "mail", "jobs"]),
        ("dead", ["jobs", "mail", "main"]),
        ("oldest", ["mail", "jobs", "main"]),
        ("rate", ["mail", "main", "jobs"]),
    ],
)
async def test_queues_are_sorted(
    queues: dict[str, FakeQueue], command_line: CommandLine, order: str, names: list[str]
) -> None:
    assert _names((await command_line.run("top", "--once", "--sort", order)).out) == names


async def test_prefix_and_json_of_a_snapshot(queues: dict[str, FakeQueue], command_line: CommandLine) -> None:
    finished = await command_line.run("--json", "top", "--once", "--prefix", "ma")
    assert [json.loads(line)["queue"]["name"] for line in finished.out.splitlines()] == ["mail", "main"]


async def test_json_is_a_line_per_change(
    service: FakeService, queues: dict[str, FakeQueue], command_line: CommandLine
) -> None:
    process = await command_line.start("--json", "top", "--interval", "200ms", "--prefix", "mail")
    first = await _record(process)
    assert (first["queue"]["counts"]["length"], first["eta"]["p50"]) == (30, "200.000s")
    await service.break_streams()
    await _put(service, "mail")
    while (told := await _record(process))["queue"]["counts"]["length"] != 31:
        pass
    assert told["as_of"] > first["as_of"]
    assert service.requests("WatchQueue")[0].interval.ToMilliseconds() == 200
    process.terminate()
    assert (await command_line.finish(process)).code == 143


async def test_service_without_streams_is_listed_again_and_again(
    service: FakeService, queues: dict[str, FakeQueue], command_line: CommandLine
) -> None:
    missing = Failure(code=grpc.StatusCode.UNIMPLEMENTED, reason="NOT_IMPLEMENTED")
    service.fail_next("WatchQueue", missing, times=100)
    process = await command_line.start("--json", "top", "--interval", "100ms", "--prefix", "mail")
    assert (await _record(process))["queue"]["counts"]["length"] == 30
    await _put(service, "mail")
    assert (await _record(process))["queue"]["counts"]["length"] == 31
    assert len(service.requests("WatchQueue")) == 1


async def test_interval_that_the_service_refuses_ends_it(
    service: FakeService, queues: dict[str, FakeQueue], command_line: CommandLine
) -> None:
    field = ("interval", "must be 100 ms to 1 h")
    invalid = Failure(code=grpc.StatusCode.INVALID_ARGUMENT, reason="FIELD_INVALID", violations=(field,))
    service.fail_next("WatchQueue", invalid, times=100)
    finished = await command_line.run("--json", "top", "--interval", "50ms")
    assert (finished.code, finished.out) == (4, b"")
    assert "interval" in finished.err


async def test_queue_that_may_not_be_watched_does_not_end_it(
    service: FakeService, queues: dict[str, FakeQueue], command_line: CommandLine
) -> None:
    service.fail_next("WatchQueue", Failure(code=grpc.StatusCode.PERMISSION_DENIED, reason="PERMISSION_DENIED"))
    process = await command_line.start("--json", "top")
    told = {(await _record(process))["queue"]["name"] for _ in range(3)}  # the third by another stream
    assert told == set(queues)
    process.terminate()
    assert (await command_line.finish(process)).code == 143


async def test_terminal_shows_what_changes_until_q_is_pressed(
    service: FakeService,
    client: headway.Client,
    queues: dict[str, FakeQueue],
    command_line: CommandLine,
    terminal: Terminal,
) -> None:
    termios.tcsetwinsize(terminal.theirs, (20, 120))
    before = termios.tcgetattr(terminal.theirs)
    process = await command_line.start(
        "top", stdin=terminal.theirs, stdout=terminal.theirs, TERM="xterm", COLUMNS="120", LINES="20"
    )
    shown = await terminal.until("3 queues; q: quit")
    assert b"2/3" in shown
    await _put(service, "mail")
    await terminal.until("31")
    await client.queue("new").create()
    await terminal.until("4 queues")
    await client.queue("new").delete()
    await terminal.until("3 queues")
    terminal.type("xq")
    assert (await command_line.finish(process)).code == 0
    await terminal.until("\x1b[?1049l")  # the screen that was there before
    assert termios.tcgetattr(terminal.theirs) == before
    await service.wait_for(lambda: not service.live_streams)


async def test_more_queues_than_lines_are_counted(
    service: FakeService, queues: dict[str, FakeQueue], command_line: CommandLine, terminal: Terminal
) -> None:
    process = await command_line.start(
        "top", stdin=terminal.theirs, stdout=terminal.theirs, TERM="xterm", COLUMNS="120", LINES="7"
    )
    await terminal.until("3 queues; and 1 more; q: quit")
    process.terminate()
    assert (await command_line.finish(process)).code == 143


async def test_service_that_is_not_there_is_said(command_line: CommandLine) -> None:
    command_line.address = "127.0.0.1:1"
    assert (await command_line.run("top")).code == 6
    assert (await command_line.run("--json", "top")).code == 6
