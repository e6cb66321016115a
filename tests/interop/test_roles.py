"""The two roles: ours are never seen taken, a foreign client holds one as long as it likes, or lives."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import StoreServer, eventually, refused
from headway.v1 import admin_service_pb2, queue_service_pb2
from interop.foreign import Foreign
from wire.calls import FAILED_PRECONDITION, NOT_FOUND, RESOURCE_EXHAUSTED, Keys, Line, payloads
from wire.conditions import consumers_wait, producers_wait

DEAD = "machine_pid4711"


async def repair(line: Line, holder: str = "") -> admin_service_pb2.RepairResponse:
    """Repair, with the name of the client that died or without."""
    assert line.admin is not None
    request = admin_service_pb2.RepairRequest(queue=line.name, confirm_holder=holder)
    return await line.admin.Repair(request, timeout=10)


def lose(keys: Keys, role: str, holder: str | bytes = DEAD) -> None:
    """A foreign client takes the role and is never heard of again."""
    assert keys.client.rpop(keys[f"{role}_free"]) is not None
    keys.client.set(keys[role], holder)


@pytest.fixture(autouse=True)
def give_lost_roles_back(keys: Keys) -> Iterator[None]:
    """So that the queue can be deleted afterwards without waiting for the dead."""
    yield
    for role in ("producer", "consumer"):
        if keys.client.exists(keys["bound"]) and not keys.client.exists(keys[f"{role}_free"]):
            keys.client.lpush(keys[f"{role}_free"], 0)


async def test_the_producer_key_bears_the_producers_name_and_the_consumer_key_the_consumers(
    line: Line, foreign: Foreign, keys: Keys
) -> None:
    await line.create()
    await line.put(b"one", b"two", producer="the mill")
    await line.get(consumer="the baker")
    assert (keys.client.get(keys["producer"]), keys.client.get(keys["consumer"])) == (b"the mill", b"the baker")
    roles = (await line.describe()).roles
    assert (roles.producer.holder, roles.consumer.holder) == ("the mill", "the baker")
    assert not roles.producer.taken
    assert not roles.consumer.taken
    await foreign.call("put", b"three")
    await foreign.call("get")
    roles = (await line.describe()).roles
    assert roles.producer.holder == roles.consumer.holder == foreign.uid


async def test_who_puts_and_gets_without_a_name_is_the_service_itself(line: Line, keys: Keys) -> None:
    assert line.admin is not None
    process = (await line.admin.GetServerInfo(admin_service_pb2.GetServerInfoRequest(), timeout=10)).process
    await line.create()
    await line.put(b"one")
    await line.get()
    roles = (await line.describe()).roles
    assert roles.producer.holder == roles.consumer.holder == process != ""


async def test_our_steps_never_show_a_role_as_taken(line: Line, keys: Keys) -> None:
    await line.create(bound=2)
    waiting_get = asyncio.create_task(line.get(wait_ms=20_000))
    await eventually(lambda: consumers_wait(line))
    assert keys.client.llen(keys["consumer_free"]) == 1
    await line.put(b"one")
    await waiting_get
    await line.put(b"two", b"three")
    waiting_put = asyncio.create_task(line.put(b"four", wait_ms=20_000))
    await eventually(lambda: producers_wait(line))
    assert keys.client.llen(keys["producer_free"]) == keys.client.llen(keys["consumer_free"]) == 1
    await line.take()
    await waiting_put
    assert keys.client.llen(keys["producer_free"]) == keys.client.llen(keys["consumer_free"]) == 1


async def test_a_blocked_foreign_get_holds_the_consumers_role_as_long_as_it_waits(line: Line, foreign: Foreign) -> None:
    await line.create()
    blocked = await foreign.block("get")
    role = (await line.describe()).roles.consumer
    assert (role.taken, role.holder) == (True, foreign.uid)
    with refused("ROLE_IN_USE", FAILED_PRECONDITION) as said:
        await line.get(wait_ms=200)
    assert said.metadata == {"queue": line.name, "role": "consumer", "holder": foreign.uid}
    await line.put(b"one")
    assert await asyncio.wait_for(blocked, 10) == b"one"
    assert not (await line.describe()).roles.consumer.taken


async def test_our_waiting_get_takes_its_turn_when_a_blocked_foreign_get_ends(line: Line, foreign: Foreign) -> None:
    await line.create()
    blocked = await foreign.block("get")
    waiting = asyncio.create_task(line.get(wait_ms=20_000))
    await eventually(lambda: consumers_wait(line))
    await line.put(b"one", b"two")
    assert await asyncio.wait_for(blocked, 10) == b"one"
    assert payloads((await asyncio.wait_for(waiting, 10)).deliveries) == [b"two"]


async def test_our_waiting_put_takes_its_turn_when_a_blocked_foreign_put_ends(
    line: Line, make_foreign: Callable[..., Foreign]
) -> None:
    await line.create(bound=1)
    await line.put(b"one")
    blocked = await make_foreign().block("put", b"two")
    waiting = asyncio.create_task(line.put(b"three", wait_ms=20_000))
    assert payloads(await line.take()) == [b"one"]
    await asyncio.wait_for(blocked, 10)
    assert payloads(await line.take(wait_ms=10_000)) == [b"two"]
    await asyncio.wait_for(waiting, 10)
    assert payloads(await line.take()) == [b"three"]


@pytest.mark.parametrize("role", ["producer", "consumer"])
async def test_a_lost_role_is_told_within_the_wait_and_described(line: Line, keys: Keys, role: str) -> None:
    await line.create()
    await line.put(b"one")
    lose(keys, role)
    described = getattr((await line.describe()).roles, role)
    assert (described.taken, described.holder) == (True, DEAD)
    started = time.monotonic()
    with refused("ROLE_IN_USE", FAILED_PRECONDITION) as said:
        await (line.put(b"two", wait_ms=300) if role == "producer" else line.get(wait_ms=300))
    assert time.monotonic() - started < 3
    assert said.metadata == {"queue": line.name, "role": role, "holder": DEAD}
    assert said.preconditions == [("ROLE_IN_USE", line.name)]
    # The other role is not needed for the other half.
    if role == "producer":
        assert payloads(await line.take()) == [b"one"]
    else:
        await line.put(b"two")


@pytest.mark.parametrize("role", ["producer", "consumer"])
async def test_a_role_that_was_given_back_long_ago_is_not_told_as_taken(line: Line, keys: Keys, role: str) -> None:
    """Behind others, who are tried again before."""
    await line.create(bound=1)
    if role == "producer":
        await line.put(b"one")
    lose(keys, role)

    def wait(wait_ms: float) -> asyncio.Task[object]:
        asked = line.put(b"two", wait_ms=wait_ms) if role == "producer" else line.get(wait_ms=wait_ms)
        return asyncio.create_task(asked)

    wait_count = producers_wait if role == "producer" else consumers_wait
    first = wait(20_000)
    await eventually(lambda: wait_count(line, 1))
    behind = wait(2_000)
    await eventually(lambda: wait_count(line, 2))
    keys.client.lpush(keys[f"{role}_free"], 0)
    if role == "producer":
        with refused("QUEUE_FULL", RESOURCE_EXHAUSTED):
            await behind
        await line.take()
    else:
        assert await behind == queue_service_pb2.GetResponse()
        await line.put(b"one")
    await asyncio.wait_for(first, 10)


async def test_a_lost_consumer_role_does_not_keep_leases_from_being_settled(line: Line, keys: Keys) -> None:
    await line.create()
    await line.put(b"one", b"two", b"three")
    one, two, three = await line.take(3, lease_ms=60_000)
    lose(keys, "consumer")
    lose(keys, "producer")
    assert await line.ack(one.lease) == [1]
    assert [result.settled for result in await line.extend(two.lease, lease_ms=60_000)] == [5]
    assert [result.settled for result in await line.delay(two.lease, delay_ms=0)] == [3]
    answer = await line.get(ack=[three.lease])  # it settles, so it answers
    assert ([result.settled for result in answer.settled], list(answer.deliveries)) == ([1], [])


@pytest.mark.parametrize("role", ["producer", "consumer"])
async def test_repair_without_a_name_only_tells(line: Line, keys: Keys, role: str) -> None:
    await line.create()
    lose(keys, role)
    before = keys.all()
    told = await repair(line)
    assert not told.repaired
    assert any(DEAD in finding for finding in told.findings)
    assert getattr(told.roles, role).taken
    assert getattr(told.roles, role).holder == DEAD
    assert getattr(told.queue.roles, role).taken
    assert keys.all() == before


@pytest.mark.parametrize("role", ["producer", "consumer"])
async def test_repair_with_another_name_refuses_and_changes_nothing(line: Line, keys: Keys, role: str) -> None:
    await line.create()
    lose(keys, role)
    with refused("ROLE_IN_USE", FAILED_PRECONDITION) as said:
        await repair(line, "somebody else")
    assert said.metadata == {"queue": line.name, "role": role, "holder": DEAD}
    assert keys.client.llen(keys[f"{role}_free"]) == 0


@pytest.mark.parametrize("role", ["producer", "consumer"])
async def test_repair_with_the_holders_name_restores_the_role(
    line: Line, foreign: Foreign, keys: Keys, role: str
) -> None:
    await line.create()
    await line.put(b"one")
    lose(keys, role)
    told = await repair(line, DEAD)
    assert told.repaired
    assert getattr(told.roles, role).taken  # as it stood before
    assert not getattr(told.queue.roles, role).taken
    assert keys.client.llen(keys[f"{role}_free"]) == 1
    await foreign.call("put", b"two")
    assert await foreign.call("get") == b"one"
    assert payloads(await line.take()) == [b"two"]


async def test_repair_wakes_those_who_wait_for_the_role(line: Line, keys: Keys) -> None:
    await line.create()
    lose(keys, "producer")
    lose(keys, "consumer")
    getting = asyncio.create_task(line.get(wait_ms=20_000))
    putting = asyncio.create_task(line.put(b"one", wait_ms=20_000))
    await eventually(lambda: consumers_wait(line))
    assert (await repair(line, DEAD)).repaired
    await asyncio.wait_for(putting, 10)
    assert payloads((await asyncio.wait_for(getting, 10)).deliveries) == [b"one"]


async def test_repair_restores_only_the_role_of_the_one_who_died(line: Line, keys: Keys) -> None:
    await line.create()
    lose(keys, "producer")
    lose(keys, "consumer", "the living")
    await repair(line, DEAD)
    assert keys.client.llen(keys["producer_free"]) == 1
    assert keys.client.llen(keys["consumer_free"]) == 0


@pytest.mark.parametrize("role", ["producer", "consumer"])
async def test_repair_knows_a_holder_whose_name_is_not_utf8_as_it_is_told(line: Line, keys: Keys, role: str) -> None:
    await line.create()
    lose(keys, role, b"\xffdead\xfe")
    holder = getattr((await line.describe()).roles, role).holder
    with refused("ROLE_IN_USE", FAILED_PRECONDITION):
        await repair(line, holder[1:])
    assert (await repair(line, holder)).repaired
    assert keys.client.llen(keys[f"{role}_free"]) == 1


async def test_repair_of_holders_who_are_told_alike_takes_one_after_the_other(line: Line, keys: Keys) -> None:
    await line.create()
    lose(keys, "producer", b"\xff")
    lose(keys, "consumer", b"\xfe")
    for free in (1, 2):
        assert (await repair(line, "\ufffd")).repaired
        assert keys.client.exists(keys["producer_free"], keys["consumer_free"]) == free


async def test_repair_of_a_client_that_left_no_name_needs_its_mark(line: Line, keys: Keys) -> None:
    await line.create()
    assert keys.client.rpop(keys["producer_free"]) is not None
    told = await repair(line)
    assert told.findings
    assert not told.repaired


async def test_repair_of_a_sound_queue_finds_nothing_and_changes_nothing(line: Line, keys: Keys) -> None:
    await line.create(bound=1)
    await line.put(b"one")
    told = await repair(line)
    assert (list(told.findings), told.repaired) == ([], False)
    told = await repair(line, DEAD)
    assert not told.repaired
    assert keys.client.llen(keys["producer_free"]) == keys.client.llen(keys["consumer_free"]) == 1


async def test_repair_of_an_unknown_queue_says_so(line: Line) -> None:
    with refused("QUEUE_NOT_FOUND", NOT_FOUND) as said:
        await repair(line)
    assert said.metadata == {"queue": line.name}


@pytest.mark.parametrize("bound", [1, 2, 0])
@pytest.mark.parametrize("has_pushed", [True, False])
async def test_repair_finishes_a_half_done_put(
    line: Line, make_foreign: Callable[..., Foreign], keys: Keys, bound: int, has_pushed: bool
) -> None:
    await line.create(bound=bound)
    lose(keys, "producer")
    keys.client.rpop(keys["not_full"])
    if has_pushed:
        keys.client.lpush(keys[""], b"12345")
    assert (await repair(line, DEAD)).repaired
    count = int(has_pushed)
    assert int(keys.client.get(keys["stats:produced_messages"]) or 0) == count
    assert int(keys.client.get(keys["stats:produced_bytes"]) or 0) == 5 * count
    assert keys.is_not_full == (bound == 0 or count < bound)
    counts = await line.counts()
    assert (counts.length, counts.accepted, counts.produced_messages) == (count, count, count)
    # Everybody can go on.
    if bound != 1 or not has_pushed:
        await make_foreign().call("put", b"next", block=False)
        assert keys.length == count + 1


@pytest.mark.parametrize("has_token", [True, False])
async def test_repair_finishes_a_half_done_get(
    line: Line, make_foreign: Callable[..., Foreign], keys: Keys, has_token: bool
) -> None:
    await line.create(bound=1)
    await line.put(b"12345")
    lose(keys, "consumer")
    assert keys.client.rpop(keys[""]) == b"12345"
    if has_token:
        keys.client.lpush(keys["not_full"], 0)
    assert (await repair(line, DEAD)).repaired
    assert int(keys.client.get(keys["stats:consumed_messages"]) or 0) == 1
    assert keys.is_not_full
    counts = await line.counts()
    assert (counts.length, counts.taken_by_foreign, counts.consumed_messages) == (0, 1, 1)
    await make_foreign().call("put", b"next", block=False)
    assert await make_foreign().call("get") == b"next"


@pytest.mark.parametrize("role", ["producer", "consumer"])
async def test_repair_finishes_a_deletion_that_a_dead_client_holds_up(line: Line, keys: Keys, role: str) -> None:
    await line.create()
    await line.put(b"one")
    lose(keys, role)
    with refused("ROLE_IN_USE"):
        await line.delete(wait_ms=100)
    told = await repair(line)
    assert not told.repaired
    assert told.findings
    told = await repair(line, DEAD)
    assert told.repaired
    assert not told.HasField("queue")
    assert keys.all() == set()
    assert (await line.create()).created


_VICTIM = """
import sys, warnings
warnings.simplefilter("ignore")
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
db = redis.Redis(host="127.0.0.1", port=int(sys.argv[1]), protocol=2, socket_timeout=None, retry=Retry(NoBackoff(), 0))
base = sys.argv[2]
db.brpop([base + ":consumer_free"], 0)
db.set(base + ":consumer", "victim")
sys.stdout.write("holds\\n")
sys.stdout.flush()
db.brpop([base, base + ":closed"], 0)
"""


@pytest.fixture
def victim(store_server: StoreServer, keys: Keys, short_dir: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts a process that blocks in a get as a foreign client does, to be killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", _VICTIM, str(store_server.port), keys[""]]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        assert started[-1].stdout is not None
        assert started[-1].stdout.readline() == b"holds\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait(10)
        if process.stdout:
            process.stdout.close()


async def test_a_foreign_process_killed_in_its_get_leaves_the_role_lost_until_repair(
    line: Line, keys: Keys, victim: Callable[[], subprocess.Popen[bytes]]
) -> None:
    await line.create()
    process = await asyncio.to_thread(victim)
    process.send_signal(signal.SIGKILL)
    await asyncio.to_thread(process.wait, 10)
    await line.put(b"one")
    # The store may learn of the death only when it serves the dead: then the message went with it.
    with refused("ROLE_IN_USE") as said:
        await line.get(wait_ms=200)
    assert said.metadata["holder"] == "victim"
    assert (await repair(line, "victim")).repaired
    await line.put(b"two")
    assert payloads(await line.take())[0] in {b"one", b"two"}
