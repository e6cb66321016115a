"""`headway stand`, run as a program: who gets a turn when, what the command sees, and what is given up at the end."""

import asyncio
import json
import os
import signal
import sys
from datetime import timedelta

import grpc
import pytest

import headway
from client.conftest import CommandLine, Terminal
from client.fake_service import Failure, FakeQueue, FakeService

HOLD = ("sh", "-c", "echo holding $HEADWAY_SLOT; read line; exit 0")  # until its standard input ends
DEAF = ("sh", "-c", "trap '' TERM INT; echo holding; while :; do sleep 0.1; done")


async def _read(reader: asyncio.StreamReader | None) -> str:
    assert reader is not None
    async with asyncio.timeout(30):
        return (await reader.readline()).decode().rstrip("\n")


async def _holder(command_line: CommandLine, *options: str) -> asyncio.subprocess.Process:
    process = await command_line.start("stand", "lock", *options, "--", *HOLD, stdin=asyncio.subprocess.PIPE)
    assert (await _read(process.stdout)).startswith("holding")
    return process


async def _short_lease(command_line: CommandLine) -> asyncio.subprocess.Process:
    """Holds the slot with a lease that must be extended soon, for a command that goes on by itself."""
    options = ("--slots", "1", "--lease", "300ms")
    process = await command_line.start("stand", "lock", *options, "--", "sh", "-c", "echo holding; sleep 60")
    assert await _read(process.stdout) == "holding"
    return process


@pytest.fixture
def lock(service: FakeService) -> FakeQueue:
    """The service's side of a queue that has one slot."""
    policy = headway.Policy(limit=1)
    policy.dedupe_window.FromSeconds(0)
    service.queues["lock"] = FakeQueue("lock", policy)
    return service.queues["lock"]


async def test_slots_are_made_and_given_back_whatever_the_command_does(
    service: FakeService, command_line: CommandLine
) -> None:
    script = 'cat; echo "slot $HEADWAY_SLOT of $HEADWAY_QUEUE, $HEADWAY_ID"; exit 3'
    finished = await command_line.run("stand", "lock", "--slots", "2", "--", "sh", "-c", script, stdin=b"our input\n")
    assert (finished.code, finished.out) == (3, b"our input\nslot 1 of lock, slot-1\n")
    made = service.queues["lock"]
    assert (made.policy.limit, [held.message.id for held in made.line]) == (2, ["slot-1", "slot-2"])
    assert [held.attempt for held in made.line] == [1, 1]
    again = await command_line.run("stand", "lock", "--slots", "2", "--", "true")
    assert again.code == 0
    assert len(made.line) == 2
    assert len(service.requests("Put")) == 1


async def test_one_after_the_other_has_the_slot(
    service: FakeService, lock: FakeQueue, command_line: CommandLine
) -> None:
    first = await _holder(command_line, "--slots", "1")
    lock.eta_seconds = 40
    second = await command_line.start("stand", "lock", "--slots", "1", "--", "echo", "second")
    assert await _read(second.stderr) == "headway: number 1 of 1, about 40 s in line for lock"
    third = await command_line.start("stand", "lock", "--slots", "1", "--", "echo", "third")
    assert await _read(third.stderr) == "headway: number 2 of 2, about 40 s in line for lock"
    assert (await command_line.finish(first, b"")).code == 0
    assert (await command_line.finish(second)).out == b"second\n"
    assert (await command_line.finish(third)).out == b"third\n"
    assert lock.most_leased == 1
    assert not lock.acked


async def test_slot_that_was_acked_by_mistake_is_made_again(lock: FakeQueue, command_line: CommandLine) -> None:
    assert (await command_line.run("stand", "lock", "--slots", "1", "--", "true")).code == 0
    assert (await command_line.run("get", "lock", "--ack")).code == 0
    assert not lock.line
    assert (await command_line.run("stand", "lock", "--slots", "1", "--", "true")).code == 0
    assert len(lock.line) == 1


async def test_other_number_of_slots_is_refused(lock: FakeQueue, made: FakeQueue, command_line: CommandLine) -> None:
    refused = await command_line.run("stand", "lock", "--slots", "2", "--", "true")
    assert refused.code == 4
    assert "'lock' has 1 slots, not 2" in refused.err
    made.policy.limit = 2
    refused = await command_line.run("stand", "q", "--slots", "2", "--", "true")
    assert refused.code == 4
    assert "was not made for slots" in refused.err
    assert not lock.line + made.line


async def test_queue_that_is_not_there_is_not_found(command_line: CommandLine) -> None:
    finished = await command_line.run("stand", "nothing", "--", "true")
    assert finished.code == 3
    assert "--slots N makes the queue" in finished.err


async def test_message_is_the_commands_input_and_acked_if_it_succeeds(
    queue: headway.Queue, made: FakeQueue, command_line: CommandLine
) -> None:
    await queue.put_many([headway.Message(id="a", payload=b"1", headers={"k": "v"}), b"2"])
    script = 'cat; echo " $HEADWAY_ID $HEADWAY_HEADER_K $HEADWAY_ATTEMPT${HEADWAY_SLOT-}"'
    finished = await command_line.run("stand", "q", "--", "sh", "-c", script)
    assert (finished.code, finished.out) == (0, b"1 a v 1\n")
    assert [m.id for m in made.acked] == ["a"]
    assert len(made.line) == 1


async def test_message_with_headers_that_no_variable_holds_together_is_run(
    queue: headway.Queue, made: FakeQueue, command_line: CommandLine
) -> None:
    await queue.put(b"", headers={f"h{number}": "x" * 4000 for number in range(40)})
    finished = await command_line.run("stand", "q", "--", "sh", "-c", 'echo "${HEADWAY_HEADERS-none}"')
    assert (finished.code, finished.out) == (0, b"none\n")
    assert len(made.acked) == 1


async def test_message_goes_to_the_backoff_if_the_command_fails(
    service: FakeService, queue: headway.Queue, made: FakeQueue, command_line: CommandLine
) -> None:
    await queue.put_many([b"1", b"2"])
    assert (await command_line.run("stand", "q", "--", "sh", "-c", "exit 3")).code == 3
    assert (await command_line.run("stand", "q", "--", "sh", "-c", "kill -9 $$")).code == 137
    assert made.reasons == ["exit status 3", "signal 9"]
    assert not any(request.keep_attempt for request in service.requests("Delay"))
    assert len(made.delayed) == 2


async def test_command_that_cannot_be_run(queue: headway.Queue, command_line: CommandLine) -> None:
    finished = await command_line.run("stand", "q", "--", "no-such-program")
    assert finished.code == 2
    assert "there is no program" in finished.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signal_while_waiting_gives_up_the_place(
    service: FakeService, made: FakeQueue, command_line: CommandLine, number: signal.Signals
) -> None:
    process = await command_line.start("stand", "q", "--", "true")
    assert "number 1 of 1" in await _read(process.stderr)
    process.send_signal(number)
    assert (await command_line.finish(process)).code == 128 + number
    await service.wait_for(lambda: not made.waiters)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signal_while_running_ends_the_command_and_frees_the_slot(
    service: FakeService, lock: FakeQueue, command_line: CommandLine, number: signal.Signals
) -> None:
    process = await _holder(command_line, "--slots", "1")
    process.send_signal(number)
    assert (await command_line.finish(process)).code == 128 + number
    await service.wait_for(lambda: lock.line and not lock.leased)


async def test_signal_gives_a_message_back_for_free(
    service: FakeService, queue: headway.Queue, made: FakeQueue, command_line: CommandLine
) -> None:
    await queue.put(b"1")
    process = await command_line.start("stand", "q", "--", "sh", "-c", "echo holding; sleep 60")
    assert await _read(process.stdout) == "holding"
    process.terminate()
    assert (await command_line.finish(process)).code == 143
    await service.wait_for(lambda: made.line)
    assert made.line[0].attempt == 1


@pytest.mark.parametrize("is_silent", [False, True])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signal_ends_one_that_tries_its_ack(  # noqa: PLR0917 - four fixtures and two parameters
    service: FakeService,
    queue: headway.Queue,
    made: FakeQueue,
    command_line: CommandLine,
    number: signal.Signals,
    is_silent: bool,
) -> None:
    await queue.put(b"1")
    away = Failure(code=grpc.StatusCode.UNAVAILABLE, reason="SHUTTING_DOWN", is_silent=is_silent)
    service.fail_next("Ack", away, times=10_000)
    process = await command_line.start("stand", "q", "--lease", "1h", "--", "true")
    await service.wait_for(lambda: service.requests("Ack"))
    process.send_signal(number)
    assert (await command_line.finish(process)).code == 128 + number
    await service.wait_for(lambda: made.acked if is_silent else made.line)


async def test_command_that_does_not_end_is_killed_after_the_grace(lock: FakeQueue, command_line: CommandLine) -> None:
    process = await command_line.start("stand", "lock", "--slots", "1", "--grace", "100ms", "--", *DEAF)
    assert await _read(process.stdout) == "holding"
    process.terminate()
    assert (await command_line.finish(process)).code == 137


async def test_second_signal_kills_the_command(lock: FakeQueue, command_line: CommandLine) -> None:
    told = "trap 'echo told' TERM; echo holding; while :; do sleep 0.1; done"
    process = await command_line.start("stand", "lock", "--slots", "1", "--grace", "1h", "--", "sh", "-c", told)
    assert await _read(process.stdout) == "holding"
    process.terminate()
    assert await _read(process.stdout) == "told"
    process.terminate()
    assert (await command_line.finish(process)).code == 137


async def test_turn_that_does_not_come_in_time(
    service: FakeService, made: FakeQueue, command_line: CommandLine
) -> None:
    finished = await command_line.run("stand", "q", "--wait", "100ms", "--", "true")
    assert finished.code == 7
    assert "did not come in time" in finished.err
    await service.wait_for(lambda: not made.waiters)


async def test_drained_queue_has_no_turn(made: FakeQueue, command_line: CommandLine) -> None:
    made.closed = True
    finished = await command_line.run("stand", "q", "--", "true")
    assert finished.code == 7
    assert "is drained" in finished.err


async def test_command_is_ended_when_its_slot_is_lost(
    service: FakeService, lock: FakeQueue, command_line: CommandLine
) -> None:
    process = await _short_lease(command_line)
    await service.lapse("lock")
    finished = await command_line.finish(process)
    assert "its lease is lost" in finished.err
    assert finished.code == 4


async def test_command_is_ended_when_nobody_can_extend_its_lease(
    service: FakeService, lock: FakeQueue, command_line: CommandLine
) -> None:
    process = await _short_lease(command_line)
    service.is_mute = True
    assert (await command_line.finish(process)).code == 4


async def test_command_keeps_running_if_asked_to(
    service: FakeService, lock: FakeQueue, command_line: CommandLine
) -> None:
    process = await _holder(command_line, "--slots", "1", "--lease", "300ms", "--keep-running")
    await service.lapse("lock")
    async with asyncio.timeout(30):
        while "its lease is lost" not in await _read(process.stderr):
            pass
    assert process.returncode is None
    assert (await command_line.finish(process, b"go on\n")).code == 0


async def test_slot_of_a_killed_holder_is_free(
    service: FakeService, lock: FakeQueue, command_line: CommandLine
) -> None:
    process = await _holder(command_line, "--slots", "1")
    process.kill()
    await service.wait_for(lambda: lock.line and not lock.leased)
    await command_line.finish(process, b"end\n")


async def test_place_is_told_as_json_or_not_at_all(made: FakeQueue, command_line: CommandLine) -> None:
    told = await command_line.run("--json", "stand", "q", "--wait", "100ms", "--", "true")
    place = json.loads(told.err.splitlines()[0])
    assert (place["position"], place["length"], place["place"][:6]) == (1, 1, "place-")
    quiet = await command_line.run("stand", "q", "--quiet", "--wait", "100ms", "--", "true")
    assert quiet.err == "headway: the turn did not come in time\n"


async def test_stream_says_who_stands_and_for_how_long(
    service: FakeService, queue: headway.Queue, command_line: CommandLine
) -> None:
    await queue.put_many([b"1", b"2"])
    await command_line.run("stand", "q", "--consumer", "me", "--lease", "90s", "--", "true")
    await command_line.run("stand", "q", "--", "true")
    named, unnamed = (request.stand for request in service.requests("WatchPosition"))
    assert (named.consumer, named.lease.ToTimedelta()) == ("me", timedelta(seconds=90))
    assert unnamed.consumer.rpartition(":")[2].isdigit()


async def test_terminal_shows_the_place_and_is_then_the_commands_own(
    service: FakeService, lock: FakeQueue, command_line: CommandLine, terminal: Terminal
) -> None:
    holder = await _holder(command_line, "--slots", "1")
    process = await command_line.start(
        *("stand", "lock", "--slots", "1", "--", "sh", "-c", "test -t 0 && read line && echo got $line"),
        stdin=terminal.theirs,
        stderr=terminal.theirs,
        TERM="xterm",
    )
    await terminal.until("you are number 1 of 1, in line for lock")
    await command_line.finish(holder, b"")
    terminal.type("typed\n")
    assert (await command_line.finish(process)).out == b"got typed\n"
    assert lock.line


async def test_interrupt_typed_at_the_terminal_is_the_commands_own(
    service: FakeService, lock: FakeQueue, command_line: CommandLine
) -> None:
    at_terminal = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    script = "trap 'echo interrupted; exit 5' INT; echo holding; while :; do sleep 0.1; done"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", at_terminal, sys.executable, "-m", "headway.cli"),
        *("stand", "lock", "--slots", "1", "--quiet", "--", "sh", "-c", script),
        env={**os.environ, "HEADWAY_ADDRESS": service.address},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    command_line.started.append(process)
    assert await _read(process.stdout) == "holding\r"
    finished = await command_line.finish(process, b"\x03")
    assert (finished.code, finished.out.count(b"interrupted")) == (5, 1)
    assert lock.line
