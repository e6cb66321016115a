"""The commands for single messages, the dead and the order of things: what they print, and what they exit with."""

import json
import signal
from datetime import UTC, datetime, timedelta

import pytest

import headway
from client.conftest import CommandLine, Terminal
from client.fake_admin import dead_message
from client.fake_service import FakeQueue, FakeService
from headway.v1.message_pb2 import OnDuplicate


def _json(out: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def graves(made: FakeQueue) -> FakeQueue:
    """A queue with five dead messages."""
    made.dead = [dead_message(f"d{number}", replays=number) for number in range(5)]
    return made


async def test_withdraw_tells_what_became_of_each(
    queue: headway.Queue, made: FakeQueue, command_line: CommandLine
) -> None:
    await queue.put(b"x", id="held")
    held = (await queue.get()).deliveries[0]
    await queue.put_many([headway.Message(id="a"), headway.Message(id="b")])
    finished = await command_line.run("withdraw", "q", "a", "held", "nobody")
    assert (finished.code, finished.out) == (4, b"a: withdrawn\n")
    assert "held: MESSAGE_LEASED" in finished.err
    assert "nobody: MESSAGE_NOT_FOUND" in finished.err
    await queue.ack([held.lease])
    told = _json((await command_line.run("--json", "withdraw", "q", "b", "held")).out)
    assert [(each["id"], each["withdrawn"]) for each in told] == [("b", True), ("held", False)]
    assert (await command_line.run("withdraw", "q", "nobody")).code == 3
    assert not made.line


async def test_leased_lists_who_works_on_what(
    service: FakeService, made: FakeQueue, queue: headway.Queue, command_line: CommandLine
) -> None:
    assert (await command_line.run("leased", "q")).code == 7
    await queue.put(b"x", id="held")
    await queue.get()
    listed = await command_line.run("leased", "q", "--most", "5")
    assert listed.code == 0
    assert b"held" in listed.out
    (told,) = _json((await command_line.run("--json", "leased", "q")).out)
    assert (told["id"], told["consumer"]) == ("held", "me")


async def test_postpone_sends_a_span_an_instant_or_nothing(
    service: FakeService, queue: headway.Queue, command_line: CommandLine
) -> None:
    await queue.put_many([headway.Message(id=name) for name in "abc"])
    by_span = await command_line.run("postpone", "q", "a", "--delay", "5m", "--reason", "later")
    assert by_span.code == 0
    assert by_span.out.startswith(b"a: joins the line at 2")
    await command_line.run("postpone", "q", "b", "--until", "2030-01-31T09:00:00+01:00")
    await command_line.run("postpone", "q", "b")
    now = await command_line.run("postpone", "q", "c", "--delay", "0", "nobody")
    assert (now.code, now.out) == (3, b"c: waits in line already\n")
    first, second, third, _ = service.requests("Delay")
    assert (first.delay.ToTimedelta(), first.reason) == (timedelta(minutes=5), "later")
    assert second.until.ToDatetime(UTC) == datetime(2030, 1, 31, 8, tzinfo=UTC)
    assert third.WhichOneof("available") is None


async def test_put_sends_times_to_live_and_replaces(
    service: FakeService, made: FakeQueue, command_line: CommandLine
) -> None:
    await command_line.run("put", "q", "old", "--id", "a", "--ttl", "90s")
    kept = await command_line.run("put", "q", "new", "--id", "a", "--on-duplicate", "keep")
    assert kept.out == b"a: known already, with another body\n"
    replaced = await command_line.run("put", "q", "new", "--id", "a", "--on-duplicate", "replace")
    assert replaced.out == b"a: ticket 2, position 1\n"
    lines = b'{"payload": "x", "time_to_live": "2h"}\n{"payload": "y"}\n'
    await command_line.run("put", "q", "--json-lines", "--ttl", "1m", stdin=lines)
    puts = service.requests("Put")
    assert puts[0].messages[0].time_to_live.ToSeconds() == 90
    assert puts[2].on_duplicate == OnDuplicate.ON_DUPLICATE_REPLACE
    assert [m.time_to_live.ToSeconds() for m in puts[3].messages] == [7200, 60]


async def test_ack_keeps_a_result(queue: headway.Queue, made: FakeQueue, command_line: CommandLine) -> None:
    await queue.put(b"x")
    lease = (await queue.get()).deliveries[0].lease
    assert (await command_line.run("ack", "q", lease, "--result", "grün")).code == 0
    assert made.results == ["grün".encode()]


async def test_policy_is_made_and_changed_field_by_field(service: FakeService, command_line: CommandLine) -> None:
    await command_line.run("create", "new", "--ttl", "1h", "--dead-letter-expired", "--bound", "5")
    policy = service.queues["new"].policy
    assert (policy.time_to_live.ToSeconds(), policy.dead_letter_expired) == (3600, True)
    changed = await command_line.run("update", "new", "--no-dead-letter-expired", "--default", "time-to-live")
    assert changed.out == b"changed new: dead_letter_expired, time_to_live\n"
    assert list(service.requests("Update")[0].update_mask.paths) == ["dead_letter_expired", "time_to_live"]
    assert (policy.HasField("time_to_live"), policy.dead_letter_expired, policy.bound) == (False, False, 5)


async def test_queue_is_paused_and_resumed(made: FakeQueue, command_line: CommandLine) -> None:
    assert (await command_line.run("pause", "q")).out == b"paused q; 0 messages wait\n"
    assert made.paused
    assert (await command_line.run("resume", "q")).code == 0
    assert not made.paused


async def test_dead_are_shown_with_why_they_died(graves: FakeQueue, command_line: CommandLine) -> None:
    shown = (await command_line.run("dead", "q")).out.decode().splitlines()
    assert shown[0].split("  ")[0].strip() == "id"
    assert all(part in shown[2] for part in ("d1", "2027-01-15T08:00:00Z", "attempts", "it broke", "body of d1"))
    assert len(shown) == 6
    assert "body" not in (await command_line.run("dead", "q", "--without-payloads")).out.decode()
    told = _json((await command_line.run("--json", "dead", "q")).out)
    assert [(each["replays"], each["cause"]) for each in told] == [(n, "attempts") for n in range(5)]


async def test_redrive_puts_back_what_is_named_or_all(
    service: FakeService, graves: FakeQueue, command_line: CommandLine
) -> None:
    service.queues["other"] = other = FakeQueue("other", headway.Policy())
    some = await command_line.run("redrive", "q", "d1", "nobody", "--to", "other", "--rate", "100")
    assert (some.code, some.out) == (3, b"put back 1 messages\n")
    assert "nobody: not dead" in some.err
    assert [held.message.id for held in other.line] == ["d1"]
    assert service.requests("Redrive")[0].rate == 100
    rest = await command_line.run("redrive", "q", "--all")
    assert (rest.code, rest.out) == (0, b"put back 4 messages\n")
    assert [held.message.id for held in graves.line] == ["d0", "d2", "d3", "d4"]


async def test_redrive_tells_its_progress_as_json(graves: FakeQueue, command_line: CommandLine) -> None:
    told = _json((await command_line.run("--json", "redrive", "q", "--all")).out)
    assert [each["redriven"] for each in told] == [0, 1, 2, 3, 4, 5, 5]
    assert [each["remaining"] for each in told] == [5, 4, 3, 2, 1, 0, 0]


async def test_interrupted_redrive_stops_and_tells_how_far_it_was(
    service: FakeService, graves: FakeQueue, command_line: CommandLine
) -> None:
    graves.policy.bound = 2
    process = await command_line.start("--json", "redrive", "q", "--all")
    assert process.stdout is not None
    while b'"redriven": 2' not in await process.stdout.readline():
        pass
    process.send_signal(signal.SIGINT)
    assert (await command_line.finish(process)).code == 130
    await service.wait_for(lambda: service.broken_off)
    assert len(graves.dead) == 3


async def test_redrive_at_a_terminal_draws_a_bar_and_tells_where_it_stopped(
    service: FakeService, graves: FakeQueue, command_line: CommandLine, terminal: Terminal
) -> None:
    graves.policy.bound = 2
    process = await command_line.start("redrive", "q", "--all", stderr=terminal.theirs, TERM="xterm")
    await terminal.until("2/5")
    process.send_signal(signal.SIGINT)
    finished = await command_line.finish(process)
    drawn = await terminal.until("to go")
    assert (finished.code, finished.out) == (130, b"")
    assert b"stopped: at least 2 put back, 3 to go" in drawn
    assert b"Traceback" not in drawn
    await service.wait_for(lambda: service.broken_off)
    assert len(graves.dead) == 3


async def test_check_prints_findings_and_says_so_with_its_exit_code(made: FakeQueue, command_line: CommandLine) -> None:
    well = await command_line.run("check", "q")
    assert (well.code, well.out) == (0, b"")
    made.findings = ["message 'a' is in two places", "the count of acked messages is 3 and should be 4"]
    unwell = await command_line.run("check", "q")
    assert unwell.code == 8
    assert unwell.out.decode().splitlines() == made.findings
    told = await command_line.run("--json", "check", "q")
    assert (told.code, _json(told.out)[0]["findings"]) == (8, made.findings)


@pytest.mark.parametrize("begun", ["withd", "postp", "red", "check", "upd"])
async def test_commands_are_completed(command_line: CommandLine, begun: str) -> None:
    process = await command_line.start(_HEADWAY_COMPLETE="complete_bash", COMP_WORDS=f"headway {begun}", COMP_CWORD="1")
    finished = await command_line.finish(process)
    assert finished.out.decode().strip().startswith(begun)


async def test_options_are_completed(command_line: CommandLine) -> None:
    process = await command_line.start(
        _HEADWAY_COMPLETE="complete_bash", COMP_WORDS="headway redrive q --", COMP_CWORD="3"
    )
    finished = await command_line.finish(process)
    assert {"--all", "--to", "--rate"} <= set(finished.out.decode().split())
