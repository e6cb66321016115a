"""`headway work`, run as a program: jobs, their environment and output, and how it ends."""

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
import termios
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import psutil
import pytest

import headway
from client.conftest import CommandLine
from client.fake_service import Failure, FakeQueue, FakeService, serving
from harness import eventually
from headway.cli._job import run_job


async def test_each_message_is_given_to_a_command(
    queue: headway.Queue, made: FakeQueue, command_line: CommandLine
) -> None:
    await queue.put_many([b"%d" % i for i in range(20)])
    await queue.close()
    finished = await command_line.run("work", "q", "-j", "4", "--", "sh", "-c", "read line; echo got $line; exit 0")
    assert finished.code == 0
    assert sorted(finished.out.splitlines()) == sorted(b"got %d" % i for i in range(20))
    assert len(made.acked) == 20
    assert made.most_leased <= 4


async def test_command_sees_the_message_in_its_environment(queue: headway.Queue, command_line: CommandLine) -> None:
    await queue.put(b"", id="a b", headers={"content-type": "text/plain", "nul": "\0"})
    await queue.close()
    finished = await command_line.run("work", "q", "--", "env")
    seen = dict(line.split("=", 1) for line in finished.out.decode().splitlines() if line.startswith("HEADWAY_"))
    assert (seen["HEADWAY_QUEUE"], seen["HEADWAY_ID"]) == ("q", "a b")
    assert (seen["HEADWAY_ATTEMPT"], seen["HEADWAY_TICKET"]) == ("1", "1")
    assert json.loads(seen["HEADWAY_HEADERS"]) == {"content-type": "text/plain", "nul": "\0"}
    assert seen["HEADWAY_HEADER_CONTENT_TYPE"] == "text/plain"
    assert "HEADWAY_HEADER_NUL" not in seen


async def test_failed_job_that_cannot_be_given_back_is_not_acked(
    service: FakeService, queue: headway.Queue, made: FakeQueue, command_line: CommandLine
) -> None:
    await queue.put(b"1")
    service.fail_next("Delay", Failure(code=grpc.StatusCode.UNAVAILABLE, reason="SHUTTING_DOWN"), times=5)  # all tries
    process = await command_line.start("work", "q", "--", "false")
    await service.wait_for(lambda: len(service.requests("Delay")) == 5)
    await service.wait_for(lambda: service.requests("Get")[-1].HasField("wait") and made.leased)  # it goes on
    process.terminate()
    assert "could not give" in (await command_line.finish(process)).err
    assert not made.acked
    assert not service.requests("Ack")
    assert not any(request.ack for request in service.requests("Get"))


@pytest.mark.parametrize("command", [("get", "q"), ("work", "q", "--drain", "--", "true")], ids=["get", "work"])
async def test_consumer_is_named(
    service: FakeService, made: FakeQueue, command_line: CommandLine, command: tuple[str, ...]
) -> None:
    process = await command_line.start(*command)
    await command_line.finish(process)
    await command_line.run(*command[:2], "--consumer", "me", *command[2:])
    unnamed, named = dict.fromkeys(request.consumer for request in service.requests("Get"))
    assert unnamed == f"{socket.gethostname()}:{process.pid}"
    assert named == "me"


async def test_headers_that_no_variable_holds_together_are_seen_one_by_one(
    queue: headway.Queue, made: FakeQueue, command_line: CommandLine
) -> None:
    await queue.put(b"", headers={f"h{number}": "x" * 4000 for number in range(40)})
    await queue.close()
    script = 'echo "${HEADWAY_HEADERS-none} ${#HEADWAY_HEADER_H39}"'
    process = await command_line.start("work", "q", "--", "sh", "-c", script, HEADWAY_HEADERS="of another worker's job")
    finished = await command_line.finish(process)
    assert (finished.code, finished.out, finished.err) == (0, b"none 4000\n", "")
    assert len(made.acked) == 1


@pytest.mark.parametrize(("excess", "failure"), [(0, ""), (1, "exit status 1")])
async def test_all_headers_are_seen_together_if_a_variable_can_hold_them(excess: int, failure: str) -> None:
    headers = {f"{number:02}": "x" * 4000 for number in range(32)}
    size = len(f"HEADWAY_HEADERS={json.dumps(headers)}\0")
    headers["00"] += "x" * (128 * 1024 - size + excess)
    assert await run_job(["sh", "-c", 'test "$HEADWAY_HEADERS"'], _lease(headers), asyncio.Lock()) == failure


async def test_outputs_of_parallel_jobs_do_not_mix(queue: headway.Queue, command_line: CommandLine) -> None:
    names = [f"job{i}" for i in range(8)]
    await queue.put_many([name.encode() for name in names])
    await queue.close()
    script = 'n=$(cat); i=0; while [ $i -lt 2000 ]; do echo "$n"; i=$((i+1)); done'
    finished = await command_line.run("work", "q", "-j", "4", "--", "sh", "-c", script)
    lines = finished.out.decode().splitlines()
    blocks = [lines[start : start + 2000] for start in range(0, len(lines), 2000)]
    assert sorted(block[0] for block in blocks) == names
    assert all(len(set(block)) == 1 for block in blocks)


async def test_failing_command_gives_the_message_to_the_backoff(
    service: FakeService, queue: headway.Queue, made: FakeQueue, command_line: CommandLine
) -> None:
    await queue.put_many([b"exit 3", b"kill -9 $$"])
    process = await command_line.start("work", "q", "--", "sh")
    await service.wait_for(lambda: len(made.delayed) == 2)
    process.terminate()
    finished = await command_line.finish(process)
    assert finished.code == 0
    assert made.reasons == ["exit status 3", "signal 9"]
    assert "exit status 3" in finished.err
    assert not any(request.keep_attempt for request in service.requests("Delay"))


async def test_first_signal_lets_jobs_finish(
    service: FakeService, queue: headway.Queue, made: FakeQueue, command_line: CommandLine, tmp_path: Path
) -> None:
    process, gate = await _worker_at_a_gate(service, queue, command_line, tmp_path)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert b"finishing 1 running" in await process.stderr.readline()
    await asyncio.to_thread(gate.write_text, "go\n")
    finished = await command_line.finish(process)
    assert (finished.code, finished.out) == (0, b"done\n")
    assert [m.payload for m in made.acked] == [b"first"]
    assert [held.message.payload for held in made.line] == [b"second"]


async def test_second_signal_kills_jobs_and_gives_back_for_free(
    service: FakeService, queue: headway.Queue, made: FakeQueue, command_line: CommandLine, tmp_path: Path
) -> None:
    process, _ = await _worker_at_a_gate(service, queue, command_line, tmp_path)
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    assert b"once more to kill" in await process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    finished = await command_line.finish(process)
    assert finished.code == 128 + signal.SIGTERM
    assert [request.keep_attempt for request in service.requests("Delay")] == [True]
    assert [held.message.payload for held in made.line] == [b"first", b"second"]
    job = int((tmp_path / "pid").read_text())
    await eventually(lambda: not psutil.pid_exists(job))


@pytest.mark.parametrize("turns", range(8))
async def test_job_cancelled_while_it_starts_leaves_nothing_running(tmp_path: Path, turns: int) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    def left() -> list[list[str]]:
        found = [one.info["cmdline"] or [] for one in psutil.process_iter(["cmdline"])]
        return [line for line in found if any(str(gate) in part for part in line)]

    job = asyncio.create_task(run_job(["sh", "-c", f"cat {gate}; echo"], _lease({}), asyncio.Lock()))
    for _ in range(turns):
        await asyncio.sleep(0)
    time.sleep(0.2)  # noqa: ASYNC251 - the program goes on, and we do not
    job.cancel()
    await asyncio.wait({job}, timeout=30)
    assert job.cancelled()
    await eventually(lambda: not left())


def _lease(headers: dict[str, str]) -> Any:
    """What a job sees of one that is never lost."""
    never = asyncio.Event().wait
    message: Any = {"id": "1", "attempt": 1, "ticket": 1, "headers": headers, "payload": b""}
    return SimpleNamespace(queue=SimpleNamespace(name="q"), until_ended=never, **message)


async def test_job_whose_lease_is_lost_is_ended(
    service: FakeService, queue: headway.Queue, made: FakeQueue, command_line: CommandLine, tmp_path: Path
) -> None:
    process, _ = await _worker_at_a_gate(service, queue, command_line, tmp_path, "--lease", "300ms")
    job = int((tmp_path / "pid").read_text())
    await service.lapse("q")
    made.line.clear()  # somebody else has it
    await eventually(lambda: not psutil.pid_exists(job))
    process.terminate()
    finished = await command_line.finish(process)
    assert finished.code == 0
    assert "its lease is lost, so sh was ended" in finished.err
    assert not service.requests("Delay")
    assert not made.acked


async def _worker_at_a_gate(
    service: FakeService, queue: headway.Queue, command_line: CommandLine, folder: Path, *options: str
) -> tuple[asyncio.subprocess.Process, Path]:
    """A worker whose job has begun and goes on when something is written into the gate."""
    gate, begun = folder / "gate", folder / "begun"
    os.mkfifo(gate)
    os.mkfifo(begun)
    await queue.put_many([b"first", b"second"])
    script = f"echo $$ > {folder / 'pid'}; echo > {begun}; cat {gate} > {folder / 'got'}; echo done"
    process = await command_line.start("work", "q", *options, "--", "sh", "-c", script)
    async with asyncio.timeout(30):
        await asyncio.to_thread(begun.read_bytes)
    return process, gate


async def test_drain_ends_when_nothing_is_left(
    queue: headway.Queue, made: FakeQueue, command_line: CommandLine
) -> None:
    await queue.put_many([b"1", b"2"])
    assert (await command_line.run("work", "q", "-j", "2", "--drain", "--", "cat")).code == 0
    assert len(made.acked) == 2


async def test_worker_says_that_it_waits_for_the_queue(service: FakeService, command_line: CommandLine) -> None:
    process = await command_line.start("work", "later", "--drain", "--", "cat")
    assert process.stderr is not None
    assert b"there is no queue" in await process.stderr.readline()
    service.queues["later"] = FakeQueue("later", headway.Policy())
    assert (await command_line.finish(process)).code == 0


async def test_worker_waits_for_a_queue_that_was_deleted(
    service: FakeService, queue: headway.Queue, command_line: CommandLine
) -> None:
    process = await command_line.start("work", "q", "--", "cat")
    await service.wait_for(lambda: service.requests("Get"))
    await queue.delete()
    assert process.stderr is not None
    assert b"there is no queue" in await process.stderr.readline()
    service.queues["q"] = again = FakeQueue("q", headway.Policy())
    await queue.put(b"after")
    await queue.close()
    finished = await command_line.finish(process)
    assert (finished.code, finished.out, len(again.acked)) == (0, b"after", 1)


@pytest.mark.parametrize("method", ["Get", "Describe"])
async def test_drain_ends_when_the_queue_is_deleted(
    service: FakeService, queue: headway.Queue, made: FakeQueue, command_line: CommandLine, method: str
) -> None:
    """Be it while a Get waits, or between its calls."""
    await queue.put(b"later", delay=timedelta(hours=1))  # else there would be nothing left
    if method == "Describe":
        missing = Failure(code=grpc.StatusCode.NOT_FOUND, reason="QUEUE_NOT_FOUND")
        service.failures["Describe"] = [None, missing]  # the first is asked for the policy
    process = await command_line.start("work", "q", "--drain", "--", "cat")
    await service.wait_for(lambda: len(service.requests("Describe")) >= 2)
    await queue.delete()
    finished = await command_line.finish(process)
    assert (finished.code, finished.out) == (3, b"")
    assert "QUEUE_DELETED" in finished.err


async def test_worker_survives_a_restart_of_the_service(command_line: CommandLine) -> None:
    service = FakeService()
    service.queues["q"] = made = FakeQueue("q", headway.Policy())
    async with serving(service):
        command_line.address = service.address
        process = await command_line.start("work", "q", "--", "cat")
        await service.wait_for(lambda: service.requests("Get"))
    assert process.stderr is not None
    assert b"trying again" in await process.stderr.readline()
    async with serving(service, service.address), headway.connect(service.address) as client:
        await client.queue("q").put(b"after")
        await client.queue("q").close()
        finished = await command_line.finish(process)
    assert (finished.code, finished.out) == (0, b"after")
    assert len(made.acked) == 1


async def test_worker_goes_on_with_the_last_token_while_its_file_is_replaced(
    service: FakeService, queue: headway.Queue, made: FakeQueue, command_line: CommandLine, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    process = await command_line.start("--token-file", str(file), "work", "q", "--", "cat")
    await service.wait_for(lambda: service.requests("Get"))
    file.unlink()
    await queue.put_many([b"1", b"2"])
    await queue.close()
    finished = await command_line.finish(process)
    assert (finished.code, finished.out, finished.err) == (0, b"12", "")
    assert len(made.acked) == 2


def _unread_bytes(pipe: int) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


async def test_second_signal_ends_a_worker_whose_output_nobody_reads(
    service: FakeService, queue: headway.Queue, made: FakeQueue, command_line: CommandLine
) -> None:
    ours, theirs = os.pipe()
    size = fcntl.fcntl(ours, fcntl.F_GETPIPE_SZ)
    await queue.put(b"1")
    script = f"head -c {2 * size} /dev/zero"
    process = await command_line.start("work", "q", "--", "sh", "-c", script, stdout=theirs)
    os.close(theirs)
    try:
        await eventually(lambda: _unread_bytes(ours) == size)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert b"once more to kill" in await process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert (await command_line.finish(process)).code == 130
    finally:
        os.close(ours)
    assert [held.attempt for held in made.line] == [1]


async def test_killed_worker_leaves_every_message_to_the_next(
    service: FakeService, queue: headway.Queue, made: FakeQueue, command_line: CommandLine
) -> None:
    lines = {b"line %d" % i for i in range(30)}
    await queue.put_many(sorted(lines))
    await queue.close()
    first = await command_line.start("work", "q", "-j", "2", "--", "cat")
    await service.wait_for(lambda: len(made.acked) >= 10)
    first.kill()
    got, _ = await first.communicate()
    await service.lapse("q")
    second = await command_line.run("work", "q", "-j", "2", "--", "cat")
    written = got + second.out
    assert all(line in written for line in lines)
    assert second.code == 0
    assert {m.payload for m in made.acked} == lines


async def test_reader_that_goes_away_ends_the_worker(
    service: FakeService, queue: headway.Queue, made: FakeQueue, command_line: CommandLine
) -> None:
    await queue.put_many([b"1", b"2", b"3"])
    read, write = os.pipe()
    os.close(read)
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headway.cli", "work", "q", "--", "cat"),
            env={**os.environ, "HEADWAY_ADDRESS": service.address},
            stdout=write,
            stderr=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(30):
            assert await process.wait() == 1
    finally:
        with contextlib.suppress(OSError):
            os.close(write)
    assert not made.acked
    assert len(made.line) == 3


async def test_disk_that_is_full_ends_the_worker_and_costs_no_attempt(
    queue: headway.Queue, made: FakeQueue, command_line: CommandLine
) -> None:
    await queue.put_many([b"1", b"2", b"3"])
    full = os.open("/dev/full", os.O_WRONLY)
    process = await command_line.start("work", "q", "--", "cat", stdout=full)
    os.close(full)
    finished = await command_line.finish(process)
    assert (finished.code, finished.err) == (1, "headway: [Errno 28] No space left on device\n")
    assert sorted((held.message.payload, held.attempt) for held in made.line) == [(b"1", 1), (b"2", 1), (b"3", 1)]
    assert not made.acked
