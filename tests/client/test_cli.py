"""The command line, run as a program: what it prints, what it puts, and what it exits with."""

import asyncio
import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
import typer
from typer.testing import CliRunner

import headway
from client.conftest import CommandLine
from client.fake_service import Failure, FakeQueue, FakeService
from headway.cli import _queues
from headway.cli._app import app
from headway.v1 import queue_service_pb2 as pb
from headway.v1.error_reason_pb2 import ErrorReason
from headway.v1.message_pb2 import Settled, SettleResult, Status
from headway.v1.queue_pb2 import Policy


def _json(out: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.splitlines()]


async def test_put_makes_the_queue_and_get_brings_the_bytes_back(
    service: FakeService, command_line: CommandLine, tmp_path: Path
) -> None:
    body = bytes(range(256))
    (tmp_path / "body").write_bytes(body)
    put = await command_line.run("put", "new", "--file", str(tmp_path / "body"), "--id", "a", "-H", "k=v")
    assert (put.code, put.out) == (0, b"a: ticket 1, position 1\n")
    assert dict(service.queues["new"].line[0].message.headers) == {"k": "v"}
    got = await command_line.run("get", "new", "--ack")
    assert (got.code, got.out) == (0, body)
    assert len(service.queues["new"].acked) == 1


async def test_leases_that_get_tells_can_be_acked(made: FakeQueue, command_line: CommandLine) -> None:
    await command_line.run("put", "q", "--lines", stdin=b"one\n\xff\nthree\n")
    told = _json((await command_line.run("--json", "get", "q", "-n", "5")).out)
    messages = [item["message"] for item in told]
    assert [m.get("payload", m.get("payload_base64")) for m in messages if isinstance(m, dict)] == [
        "one",
        "/w==",
        "three",
    ]
    assert [item["ticket"] for item in told] == [1, 2, 3]
    acked = await command_line.run("--json", "ack", "q", *(str(item["lease"]) for item in told), "made up")
    assert [item["settled"] for item in _json(acked.out)] == ["ACKED", "ACKED", "ACKED", "GONE"]
    assert acked.code == 3
    assert len(made.acked) == 3


@pytest.mark.parametrize("more", [[], ["--ack"]], ids=["leased", "acked"])
async def test_what_get_could_not_write_goes_back_at_no_cost(
    queue: headway.Queue, made: FakeQueue, command_line: CommandLine, more: list[str]
) -> None:
    await queue.put_many([b"1", b"2", b"3"])
    read, write = os.pipe()
    process = await command_line.start("get", "q", "-n", "3", *more, stdout=write)
    os.close(write)
    os.close(read)
    assert (await command_line.finish(process)).code == 1
    assert sorted((held.message.payload, held.attempt) for held in made.line) == [(b"1", 1), (b"2", 1), (b"3", 1)]
    assert not made.acked


async def test_what_get_has_no_disk_for_goes_back(
    queue: headway.Queue, made: FakeQueue, command_line: CommandLine
) -> None:
    await queue.put_many([b"1", b"2"])
    full = os.open("/dev/full", os.O_WRONLY)
    process = await command_line.start("get", "q", "-n", "2", stdout=full)
    os.close(full)
    finished = await command_line.finish(process)
    assert (finished.code, finished.err) == (1, "headway: [Errno 28] No space left on device\n")
    assert sorted((held.message.payload, held.attempt) for held in made.line) == [(b"1", 1), (b"2", 1)]


async def test_queue_is_ended_where_no_call_may_wait(
    service: FakeService, made: FakeQueue, command_line: CommandLine
) -> None:
    service.limits.max_wait.FromTimedelta(timedelta(0))
    assert (await command_line.run("put", "q", "x", "--close")).code == 0
    assert made.closed
    assert (await command_line.run("delete", "q", "--yes")).code == 0
    assert not service.queues


async def test_several_addresses_that_are_names_are_wrong_usage(command_line: CommandLine) -> None:
    finished = await command_line.run("--address", "one:1,two:2", "list")
    assert finished.code == 2
    assert "--address" in finished.err
    assert "'one:1' cannot stand" in finished.err


async def test_token_that_no_header_can_hold_is_no_defect(
    made: FakeQueue, command_line: CommandLine, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("secret\nsecond\n")
    by_variable = await command_line.start("describe", "q", HEADWAY_TOKEN=file.read_text())
    by_file = await command_line.start("--token-file", str(file), "describe", "q")
    for process in (by_variable, by_file):
        finished = await command_line.finish(process)
        assert finished.code == 1
        assert finished.err.startswith("headway: the token ")
        assert finished.err.count("\n") == 1
        assert "secret" not in finished.err


@pytest.mark.parametrize(
    "line",
    [
        *(f"create q --{option} -1" for option in ("bound", "limit", "max-attempts", "turns")),
        *(f"update q --{option} {2**32}" for option in ("bound", "limit", "max-attempts", "turns")),
        f"get q --count {2**32}",
        f"peek q --count {2**32}",
        f"peek q --from {2**64}",
        "leased q --most -1",
        f"leased q --most {2**32}",
        f"check q --max-entries {2**64}",
    ],
)
def test_number_that_no_field_holds_is_wrong_usage_and_names_its_option(line: str) -> None:
    finished = CliRunner().invoke(app, line.split(), env={"HEADWAY_ADDRESS": "127.0.0.1:1", "COLUMNS": "200"})
    assert finished.exit_code == 2
    assert line.split()[2] in finished.output


@pytest.mark.parametrize(
    "line",
    [
        f"create q --bound {2**32 - 1} --max-attempts {2**32 - 1} --turns {2**32 - 1}",
        f"get q --count {2**32 - 1}",
        f"peek q --count {2**32 - 1} --from {2**64 - 1}",
        f"leased q --most {2**32 - 1}",
        f"check q --max-entries {2**64 - 1}",
    ],
)
async def test_number_that_a_field_just_holds_is_for_the_service_to_judge(
    service: FakeService, command_line: CommandLine, line: str
) -> None:
    command, queue, *rest = line.split()
    await command_line.run(command, queue, *rest)
    asked = str(service.calls[-1][1])
    assert all(number in asked for number in rest[1::2]), asked


async def test_ack_of_a_message_that_is_dead_is_refused(
    service: FakeService, queue: headway.Queue, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.put_many([b"1", b"2"])
    lease = (await queue.get()).deliveries[0].lease
    await service.lapse("q", is_last=True)
    acked = await command_line.run("ack", "q", lease, "made up")
    assert acked.code == 4
    assert f"dead: {lease}" in acked.err

    def too_late(_: FakeQueue, request: pb.AckRequest) -> list[SettleResult]:
        return [SettleResult(lease=token, settled=Settled.SETTLED_DEAD) for token in request.leases]

    monkeypatch.setattr(service, "ack_all", too_late)
    got = await command_line.run("get", "q", "--ack")
    assert (got.code, got.out) == (4, b"2")


async def test_lines_are_put_in_order_as_they_come(
    service: FakeService, made: FakeQueue, command_line: CommandLine
) -> None:
    process = await command_line.start("put", "q", "--lines", "--close", stdin=asyncio.subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"first\nsec")
    await process.stdin.drain()
    await service.wait_for(lambda: made.line)
    finished = await command_line.finish(process, b"ond\r\n\nlast")
    assert [held.message.payload for held in made.line] == [b"first", b"second\r", b"", b"last"]
    assert made.closed
    assert finished.code == 0
    assert "put 4 messages" in finished.err


async def test_lines_wait_for_room_in_a_full_queue(
    service: FakeService, made: FakeQueue, command_line: CommandLine
) -> None:
    made.policy.bound = 2
    process = await command_line.start("put", "q", "--lines", stdin=asyncio.subprocess.PIPE)
    finishing = asyncio.create_task(command_line.finish(process, b"1\n2\n3\n4\n5\n"))
    taken: list[bytes] = []
    while len(taken) < 5:
        await service.wait_for(lambda: made.line)
        taken.append(made.line.pop(0).message.payload)
    assert (await finishing).code == 0
    assert taken == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("put q hello <&-", 0, ""),
        ("delete q <&-", 0, ""),
        ("put q <&-", 0, ""),
        ("put q hello >&-", 1, ""),
        ("get q --ack >&-", 1, ""),
        ("--json describe q >&- 2>&-", 1, ""),
        ("put q --json-lines < deep", 1, "headway: line 1 is not a message"),
        ("peek q", 0, ""),
    ],
)
async def test_odd_surroundings_are_no_defects(  # noqa: PLR0917 - three fixtures and three parameters
    queue: headway.Queue, command_line: CommandLine, tmp_path: Path, command: str, code: int, told: str
) -> None:
    await queue.put("é✓".encode(), id="é✓")
    (tmp_path / "deep").write_text("[" * 200_000)
    program = f'headway() {{ {sys.executable} -m headway.cli "$@"; }}; headway {command}'
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", program),
        cwd=tmp_path,
        env={**os.environ, "HEADWAY_ADDRESS": command_line.address, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    command_line.started.append(process)
    finished = await command_line.finish(process)
    assert finished.code == code, finished.err
    assert told in finished.err
    assert "Traceback" not in finished.err


async def test_interrupted_lines_tell_how_many_were_put_at_least(
    service: FakeService, made: FakeQueue, command_line: CommandLine
) -> None:
    made.policy.bound = 1
    process = await command_line.start("put", "q", "--lines", stdin=asyncio.subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"1\n2\n3\n")
    await service.wait_for(lambda: len(service.requests("Put")) == 2)  # the rest waits for room
    process.send_signal(signal.SIGINT)
    finished = await command_line.finish(process)
    assert finished.err == "headway: put at least 1 messages\n"


@pytest.mark.parametrize("longest", [timedelta(0), timedelta(seconds=1)])
async def test_lines_wait_no_longer_at_once_than_the_service_lets_them(
    service: FakeService, made: FakeQueue, command_line: CommandLine, longest: timedelta
) -> None:
    service.limits.max_wait.FromTimedelta(longest)
    made.policy.bound = 1
    process = await command_line.start("put", "q", "--lines", stdin=asyncio.subprocess.PIPE)
    finishing = asyncio.create_task(command_line.finish(process, b"1\n2\n"))
    await service.wait_for(lambda: len(service.requests("Put")) == 2)
    made.line.clear()
    await service.notify()
    assert (await finishing).code == 0
    assert [held.message.payload for held in made.line] == [b"2"]


async def test_json_lines_bring_ids_headers_and_delays(made: FakeQueue, command_line: CommandLine) -> None:
    lines = b'{"payload": "a", "id": "x", "headers": {"h": "1"}}\n{"payload_base64": "/w==", "delay": "5m"}\n'
    assert (await command_line.run("put", "q", "--json-lines", stdin=lines)).code == 0
    assert (made.line[0].message.id, dict(made.line[0].message.headers)) == ("x", {"h": "1"})
    assert made.delayed[0].message.payload == b"\xff"
    again = await command_line.run("--json", "put", "q", "--json-lines", stdin=b'{"payload": "a", "id": "x"}\n')
    assert again.code == 4
    assert _json(again.out)[0]["error"] == {
        "code": 6,
        "message": "known",
        "reason": "DUPLICATE_MESSAGE",
        "metadata": {},
    }
    broken = await command_line.run("put", "q", "--json-lines", stdin=b'{"payload": 3}\n')
    assert broken.code == 1
    assert "line 1 is not a message" in broken.err


async def test_standard_input_is_one_message(made: FakeQueue, command_line: CommandLine) -> None:
    assert (await command_line.run("put", "q", stdin=b"one\ntwo\n")).code == 0
    assert [held.message.payload for held in made.line] == [b"one\ntwo\n"]


async def test_queues_are_shown(service: FakeService, command_line: CommandLine) -> None:
    created = await command_line.run("create", "big", "--bound", "5", "--lease", "90s", "--max-attempts", "3")
    assert created.out == b"created big\n"
    listed = (await command_line.run("list")).out.decode()
    assert "big" in listed
    assert "open" in listed
    described = _json((await command_line.run("--json", "describe", "big")).out)[0]
    policy = described["policy"]
    assert isinstance(policy, dict)
    assert (policy["bound"], policy["lease"]) == (5, "90s")
    await command_line.run("put", "big", "hello \x1b[31m")
    peeked = (await command_line.run("peek", "big")).out
    assert b"hello" in peeked
    assert b"\x1b" not in peeked
    assert b"removed 1 waiting" in (await command_line.run("purge", "big")).out
    assert b"ghost" in (await command_line.run("repair", "big")).out
    assert b"0.0.fake" in (await command_line.run("info")).out
    assert (await command_line.run("delete", "big")).code == 0
    assert not service.queues


EXITS = [
    (("describe", "q"), Failure(code=grpc.StatusCode.INTERNAL, reason="INTERNAL"), 1),
    (("get",), None, 2),
    (("put", "q", "x", "--wait", "soon"), None, 2),
    (("work", "q", "--", "no-such-program-here"), None, 2),
    (("describe", "q"), Failure(code=grpc.StatusCode.NOT_FOUND, reason="QUEUE_NOT_FOUND"), 3),
    (("describe", "q"), Failure(code=grpc.StatusCode.INVALID_ARGUMENT, reason="NAME_REFUSED"), 4),
    (("describe", "q"), Failure(code=grpc.StatusCode.RESOURCE_EXHAUSTED, reason="OVERLOADED"), 5),
    (("describe", "q"), Failure(code=grpc.StatusCode.FAILED_PRECONDITION, reason="ROLE_IN_USE"), 5),
    (("close", "q"), Failure(code=grpc.StatusCode.UNAVAILABLE, reason="OUTCOME_UNKNOWN"), 6),
    (("get", "q"), None, 7),
    (("peek", "q"), None, 7),
    (("get", "q"), Failure(code=grpc.StatusCode.FAILED_PRECONDITION, reason="QUEUE_DRAINED"), 7),
    (("withdraw", "q"), None, 2),
    (("withdraw", "none", "a"), None, 3),
    (("withdraw", "q", "a"), Failure(code=grpc.StatusCode.FAILED_PRECONDITION, reason="MESSAGE_FINISHED"), 4),
    (("postpone", "q", "a", "--delay", "1s", "--until", "2030-01-01T00:00:00Z"), None, 2),
    (("postpone", "q", "a", "--until", "2030-01-01"), None, 2),
    (("postpone", "q", "a", "--until", "tomorrow"), None, 2),
    (("postpone", "q", "a", "--until", "0001-01-01T00:00:00+14:00"), None, 2),
    (("dead", "q"), None, 7),
    (("dead", "none"), None, 3),
    (("redrive", "q"), None, 2),
    (("redrive", "q", "a", "--all"), None, 2),
    (("redrive", "q", "--all", "--rate", "quick"), None, 2),
    (("redrive", "none", "--all"), None, 3),
    (("redrive", "q", "--all"), Failure(code=grpc.StatusCode.FAILED_PRECONDITION, reason="QUEUE_CLOSED"), 4),
    (("check", "none"), None, 3),
    (("check", "q"), Failure(code=grpc.StatusCode.INVALID_ARGUMENT, reason="TOO_LARGE"), 4),
    (("update", "q"), None, 2),
    (("update", "q", "--default", "size"), None, 2),
    (("update", "q", "--ttl", "5m", "--default", "time-to-live"), None, 2),
]


@pytest.mark.parametrize(("arguments", "failure", "code"), EXITS)
async def test_exit_code_tells_what_happened(  # noqa: PLR0917 - three fixtures and three parameters
    service: FakeService,
    made: FakeQueue,
    command_line: CommandLine,
    arguments: tuple[str, ...],
    failure: Failure | None,
    code: int,
) -> None:
    if failure is not None:
        service.fail_next(arguments[0].capitalize(), failure)
    finished = await command_line.run(*arguments)
    assert finished.code == code, finished.err
    assert not finished.out


async def test_full_queue_is_refused_without_patience_and_failures_are_json_if_asked(
    made: FakeQueue, command_line: CommandLine
) -> None:
    made.policy.CopyFrom(Policy(bound=1))
    finished = await command_line.run("--json", "put", "q", "--lines", "--wait", "0", stdin=b"1\n2\n3\n")
    assert finished.code == 5
    assert [("error" in result) for result in _json(finished.out)] == [False, True]
    again = await command_line.run("--json", "put", "q", "x")
    assert again.code == 5
    assert json.loads(again.err)["error"]["reason"] == "QUEUE_FULL"


@pytest.mark.parametrize("wait", ["0", "10ms"])
async def test_a_queue_is_not_closed_when_there_was_no_room_for_all(
    made: FakeQueue, command_line: CommandLine, wait: str
) -> None:
    made.policy.CopyFrom(Policy(bound=2))
    stopped = await command_line.run("put", "q", "--lines", "--wait", wait, "--close", stdin=b"1\n2\n3\n")
    assert stopped.code == 5
    assert "not closed" in stopped.err
    assert not made.closed
    assert (await command_line.run("put", "q", "3", "--close")).code == 5
    assert not made.closed
    made.policy.CopyFrom(Policy(bound=3))
    assert (await command_line.run("put", "q", "--lines", "--close", stdin=b"3\n")).code == 0
    assert made.closed


@pytest.mark.parametrize("reason", ["SHUTTING_DOWN", "STORE_UNAVAILABLE", "NOT_DURABLE", "STORE_FULL", "OVERLOADED"])
async def test_lines_that_a_service_going_down_did_not_take_are_put_again(
    service: FakeService, made: FakeQueue, command_line: CommandLine, reason: str
) -> None:
    service.cuts = [(1, _status(reason)), (1, _status(reason))]
    finished = await command_line.run("put", "q", "--lines", "--close", stdin=b"1\n2\n3\n4\n")
    assert (finished.code, finished.err) == (0, "headway: put 4 messages\n")
    assert [held.message.payload for held in made.line] == [b"1", b"2", b"3", b"4"]
    assert made.closed


@pytest.mark.parametrize(("options", "reason"), [(("--wait", "0"), "SHUTTING_DOWN"), ((), "OUTCOME_UNKNOWN")])
async def test_nothing_is_put_behind_lines_that_were_not_taken_and_the_queue_is_not_closed(
    service: FakeService, made: FakeQueue, command_line: CommandLine, options: tuple[str, ...], reason: str
) -> None:
    """Without patience, or because what is put again may be put twice."""
    service.cuts = [(1, _status(reason))]
    process = await command_line.start("put", "q", "--lines", "--close", *options, stdin=asyncio.subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"1\n2\n")
    await service.wait_for(lambda: service.requests("Put"))
    finished = await command_line.finish(process, b"3\n")
    assert finished.code == 6
    assert "not closed" in finished.err
    assert [held.message.payload for held in made.line] == [b"1"]
    assert not made.closed


def _status(reason: str) -> Status:
    return Status(message="not now", reason=ErrorReason.Value(f"ERROR_REASON_{reason}"))


async def test_what_is_refused_by_itself_does_not_keep_a_queue_open(made: FakeQueue, command_line: CommandLine) -> None:
    lines = b'{"payload": "a", "id": "x"}\n{"payload": "b", "id": "x"}\n{"payload": "c"}\n'
    assert (await command_line.run("put", "q", "--json-lines", "--close", stdin=lines)).code == 4
    assert [held.message.payload for held in made.line] == [b"a", b"c"]
    assert made.closed


def test_purge_asks_about_all_that_it_removes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def confirm(question: str, *, is_sure: bool) -> None:
        assert not is_sure
        asked.append(question)
        raise typer.Abort

    monkeypatch.setattr(_queues, "_confirm", confirm)
    for options in ([], ["--dead"]):
        CliRunner().invoke(app, ["purge", "q", *options])
    assert asked == [
        "Remove every waiting and delayed message of q?",
        "Remove every waiting, delayed and dead message of q?",
    ]


async def test_no_create_does_not_make_a_queue(service: FakeService, command_line: CommandLine) -> None:
    assert (await command_line.run("put", "new", "x", "--no-create")).code == 3
    assert not service.queues
