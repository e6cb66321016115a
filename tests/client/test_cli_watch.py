"""`headway watch`, run as a program: what it tells of messages, in which form, and what it exits with."""

import asyncio
import json
import signal
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

import headway
from client.conftest import CommandLine, Terminal
from client.fake_service import FakeQueue, FakeService
from headway.cli._watch import View


async def _line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(30):
        return (await process.stdout.readline()).decode().rstrip("\n")


async def test_each_change_is_a_line(
    service: FakeService, queue: headway.Queue, made: FakeQueue, command_line: CommandLine
) -> None:
    made.eta_seconds = 40
    await queue.put_many([headway.Message(id=name) for name in ("first", "mine")])
    process = await command_line.start("watch", "q", "mine")
    assert await _line(process) == "mine: number 2 of 2, about 40 s"
    first = (await queue.get()).deliveries[0].lease
    assert await _line(process) == "mine: number 1 of 1, about 40 s"
    await queue.ack([first])
    async with queue.lease() as lease:
        assert lease is not None
        assert await _line(process) == "mine: being worked on, attempt 1"
        await lease.progress(0.4, "resize\x1b[31m")
        assert await _line(process) == "mine: being worked on, attempt 1, 40%: resize·[31m"
        await lease.ack(b"42")
    finished = await command_line.finish(process)
    assert (finished.code, finished.out) == (0, b"mine: done: 42\n")


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ({"a": "DONE", "b": "DONE"}, 0),
        ({"a": "DONE", "b": "WITHDRAWN"}, 9),
        ({"a": "EXPIRED", "b": "DONE"}, 9),
        ({"a": "DEAD"}, 9),
        ({"a": "DONE"}, 3),
    ],
)
async def test_exit_code_tells_how_they_ended(
    made: FakeQueue, command_line: CommandLine, outcomes: dict[str, str], code: int
) -> None:
    made.outcomes = outcomes
    finished = await command_line.run("watch", "q", "a", "b")
    assert finished.code == code
    told = dict(line.split(": ", 1) for line in finished.out.decode().splitlines())
    words = {"DEAD": "dead: it broke"}
    expected = {name: outcomes.get(name, "not known") for name in "ab"}
    assert told == {name: words.get(end, end.lower()) for name, end in expected.items()}


async def test_watch_of_no_queue_is_not_found(command_line: CommandLine) -> None:
    finished = await command_line.run("watch", "nothing", "a")
    assert finished.code == 3
    assert "QUEUE_NOT_FOUND" in finished.err


async def test_json_is_one_object_per_thing_told(
    service: FakeService, queue: headway.Queue, made: FakeQueue, command_line: CommandLine
) -> None:
    made.eta_seconds = 1.5
    await queue.put(b"1", id="a")
    process = await command_line.start("--json", "watch", "q", "a")
    first = json.loads(await _line(process))
    assert first.pop("as_of").endswith("Z")
    assert first == {
        "id": "a",
        "state": "WAITING",
        "position": 1,
        "length": 1,
        "limit": 0,
        "poll_min": "1.000s",
        "poll_max": "9.000s",
        "eta": {"known": True, "p50": "1.500s", "p90": "4.500s"},
        "moved_back": False,
    }
    async with queue.lease() as lease:
        assert lease is not None
        assert json.loads(await _line(process))["progress"] is None
        await lease.progress(0.5, "half")
        assert json.loads(await _line(process))["progress"] == {"fraction": 0.5, "note": "half"}
        await lease.ack(b"\xff")
    last = json.loads((await command_line.finish(process)).out)
    assert (last["state"], last["outcome"], last["result_base64"]) == ("FINISHED", "DONE", "/w==")


async def test_terminal_is_drawn_on(
    queue: headway.Queue, made: FakeQueue, command_line: CommandLine, terminal: Terminal
) -> None:
    made.eta_seconds = 40
    await queue.put_many([headway.Message(id=name) for name in ("first", "mine")])
    process = await command_line.start("watch", "q", "first", "mine", stdout=terminal.theirs, TERM="xterm")
    await terminal.until("you are number 2 of 2, about 40 s")
    held = await queue.get(2)
    await queue.extend([held.deliveries[1].lease], progress=0.4, note="resize")
    shown = await terminal.until("being worked on, attempt 1, 40%: resize")
    await queue.ack([each.lease for each in held.deliveries], result=b"42")
    assert (await command_line.finish(process)).code == 0
    shown += await terminal.until("\x1b[?25h")  # the cursor is back
    assert shown.count(b"done: 42") >= 2
    assert "━".encode() in shown


def test_the_time_until_a_message_joins_the_line_is_counted_down_on_the_picture() -> None:
    now = [0.0]
    view = View(["a"], room=lambda: 9, clock=lambda: now[0])
    as_of = datetime(2030, 1, 1, tzinfo=UTC)
    view.note(headway.Delayed(id="a", as_of=as_of, available_at=as_of + timedelta(hours=2)))
    console = Console(width=100)
    for seconds, left in ((0.0, "2 h"), (3_600.0, "60 min"), (7_170.0, "30 s"), (7_500.0, "1 s")):
        now[0] = seconds
        with console.capture() as shown:
            console.print(view.picture())
        assert f"joins the line in {left}" in shown.get()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_interrupted_watch_leaves_the_terminal_as_it_was(
    service: FakeService, queue: headway.Queue, command_line: CommandLine, terminal: Terminal, number: signal.Signals
) -> None:
    await queue.put(b"1", id="a")
    process = await command_line.start("watch", "q", "a", stdout=terminal.theirs, TERM="xterm")
    await terminal.until("number 1 of 1")
    process.send_signal(number)
    assert (await command_line.finish(process)).code == 128 + number
    shown = await terminal.until("\x1b[?25h")
    assert b"Traceback" not in shown
    await service.wait_for(lambda: not service.live_streams)


async def test_end_of_an_attended_watch_withdraws(
    service: FakeService, queue: headway.Queue, made: FakeQueue, command_line: CommandLine
) -> None:
    await queue.put(b"1", id="a")
    process = await command_line.start("watch", "q", "a", "--attended")
    await _line(process)
    process.terminate()
    assert (await command_line.finish(process)).code == 143
    await service.wait_for(lambda: made.outcomes == {"a": "WITHDRAWN"})


async def test_watch_outlives_a_broken_stream(
    service: FakeService, queue: headway.Queue, command_line: CommandLine
) -> None:
    await queue.put(b"1", id="a")
    process = await command_line.start("watch", "q", "a")
    await _line(process)
    await service.break_streams()
    await service.wait_for(lambda: len(service.requests("WatchPosition")) == 2)
    await queue.ack([(await queue.get()).deliveries[0].lease])
    finished = await command_line.finish(process)
    assert finished.code == 0
    assert finished.out.endswith(b"a: done\n")
    assert "trying again until it works" in finished.err
