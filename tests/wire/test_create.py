"""Create: makes a queue with a policy, once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
import pytest

from harness import ServiceProcess, StoreServer, refused
from headway.v1 import queue_pb2, queue_service_pb2
from wire.calls import ALREADY_EXISTS, INVALID_ARGUMENT, SLACK_S, Keys, Line, line_at, span

DAY_MS = 24 * 3_600 * 1_000
DEFAULTS = {
    "bound": 0,
    "limit": 0,
    "lease": 30_000,
    "retry.max_attempts": 0,
    "retry.min_backoff": 1_000,
    "retry.max_backoff": 300_000,
    "retry.multiplier": 2.0,
    "retry.jitter": 0.0,
    "time_to_live": None,
    "poll.base": 1_000,
    "poll.per_position": 500,
    "poll.max": 60_000,
    "poll.tolerance": 500,
    "poll.strikes": 3,
    "place_grace": 0,
    "turns": 0,
    "dedupe_window": 60_000,
    "remember": 60_000,
}
# Path, the lowest and the highest value, and what lies just beyond; spans in milliseconds.
BOUNDS: list[tuple[str, float, float, list[float]]] = [
    ("bound", 0, 1_000_000_000, [1_000_000_001]),
    ("limit", 0, 1_000_000, [1_000_001]),
    ("lease", 100, 12 * 3_600_000, [99, 99.999999, 12 * 3_600_000 + 1, 0, -1]),
    ("retry.max_attempts", 0, 1_000_000, [1_000_001]),
    ("retry.min_backoff", 0, DAY_MS, [DAY_MS + 1, -1]),
    ("retry.max_backoff", 1_000, 30 * DAY_MS, [30 * DAY_MS + 1, 999, -1]),
    ("retry.multiplier", 1.0, 100.0, [0.999, 100.001, -1, float("nan"), float("inf")]),
    ("retry.jitter", 0.0, 1.0, [-0.001, 1.001, float("nan")]),
    ("poll.base", 10, 600_000, [9, 600_001]),
    ("poll.per_position", 0, 60_000, [-1, 60_001]),
    ("poll.max", 1_000, 600_000, [999, 600_001]),
    ("poll.tolerance", 0, 60_000, [-1, 60_001]),
    ("poll.strikes", 1, 100, [101]),
    ("place_grace", 0, 600_000, [-1, 600_001]),
    ("turns", 0, 1_000_000, [1_000_001]),
    ("dedupe_window", 0, 7 * DAY_MS, [-1, 7 * DAY_MS + 1]),
    ("remember", 0, DAY_MS, [-1, DAY_MS + 1]),
]


def policy_with(path: str, value: float) -> queue_pb2.Policy:
    """A policy in which one field is set."""
    policy = queue_pb2.Policy()
    if path == "poll.base":
        policy.poll.max.CopyFrom(span(600_000))  # what is unset is 60 s, and may not be below the base
    owner: object = policy
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    field = owner.DESCRIPTOR.fields_by_name[name]  # type: ignore[attr-defined]
    if field.message_type is None:
        setattr(owner, name, value if field.type == field.TYPE_DOUBLE else int(value))
    else:
        getattr(owner, name).CopyFrom(span(value))
    return policy


def value_at(policy: queue_pb2.Policy, path: str) -> float | None:
    """What a field of the policy is; spans in milliseconds; None if it is unset."""
    owner: object = policy
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    value = getattr(owner, name)
    if not hasattr(value, "ToMilliseconds"):
        return float(value)
    return float(value.ToMilliseconds()) if owner.HasField(name) else None  # type: ignore[attr-defined]


async def create(line: Line, policy: queue_pb2.Policy | None = None) -> queue_service_pb2.CreateResponse:
    return await line.stub.Create(queue_service_pb2.CreateRequest(queue=line.name, policy=policy), timeout=SLACK_S)


async def test_a_new_queue_is_told_as_it_stands_with_every_default_filled_in(line: Line) -> None:
    answer = await create(line)
    assert answer.created
    queue = answer.queue
    assert {path: value_at(queue.policy, path) for path in DEFAULTS} == DEFAULTS
    assert (queue.name, queue.closed, queue.paused) == (line.name, False, False)
    assert queue.counts.accepted == queue.counts.length == 0
    assert queue.generation
    assert queue.durability in {"memory", "everysec", "always", "replicated"}
    assert not queue.roles.producer.taken
    assert not queue.roles.consumer.taken


async def test_created_at_is_the_stores_time(line: Line, keys: Keys) -> None:
    before = keys.client.time()[0]
    queue = (await create(line)).queue
    after = keys.client.time()[0]
    assert before <= queue.created_at.seconds <= after


async def test_the_same_name_and_policy_again_is_the_same_queue(line: Line) -> None:
    first = await line.create(bound=3, lease=span(5_000))
    again = await line.create(bound=3, lease=span(5_000))
    assert (first.created, again.created) == (True, False)
    assert again.queue.generation == first.queue.generation


async def test_defaults_written_out_are_the_same_policy(line: Line) -> None:
    first = await create(line)
    assert not (await create(line, first.queue.policy)).created
    assert not (await create(line, queue_pb2.Policy())).created


async def test_the_same_name_with_another_policy_names_the_fields_that_differ(line: Line) -> None:
    await line.create(bound=3)
    with refused("QUEUE_EXISTS", ALREADY_EXISTS) as said:
        await line.create(bound=4, lease=span(5_000), retry=queue_pb2.Retry(max_attempts=2))
    assert said.metadata["queue"] == line.name
    assert set(said.metadata["fields"].split(",")) == {"bound", "lease", "retry.max_attempts"}
    assert (await line.describe()).policy.bound == 3


async def test_a_policy_is_kept_to_the_last_digit(line: Line) -> None:
    policy = queue_pb2.Policy(bound=7, limit=3, lease=span(1_234), dedupe_window=span(1), place_grace=span(1_001))
    policy.retry.max_attempts = 5
    policy.retry.min_backoff.CopyFrom(span(1))
    policy.retry.max_backoff.CopyFrom(span(2))
    policy.retry.multiplier = 1.25
    policy.retry.jitter = 0.1
    policy.poll.strikes = 1
    policy.poll.base.CopyFrom(span(60_000))  # up to the longest
    queue = (await create(line, policy)).queue
    expected = DEFAULTS | {
        "bound": 7,
        "limit": 3,
        "lease": 1_234,
        "dedupe_window": 1,
        "place_grace": 1_001,
        "retry.max_attempts": 5,
        "retry.min_backoff": 1,
        "retry.max_backoff": 2,
        "retry.multiplier": 1.25,
        "retry.jitter": 0.1,
        "poll.strikes": 1,
        "poll.base": 60_000,
    }
    assert {path: value_at(queue.policy, path) for path in DEFAULTS} == expected
    assert not (await create(line, policy)).created


async def test_the_longest_backoff_is_not_below_a_long_shortest_one(line: Line) -> None:
    queue = (await create(line, policy_with("retry.min_backoff", 600_000))).queue
    assert value_at(queue.policy, "retry.max_backoff") == 600_000


@pytest.mark.parametrize(("path", "lowest", "highest", "beyond"), BOUNDS, ids=[row[0] for row in BOUNDS])
async def test_each_field_of_a_policy_is_taken_up_to_its_bounds_and_refused_beyond(
    line: Line, path: str, lowest: float, highest: float, beyond: list[float]
) -> None:
    for value in beyond:
        with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
            await create(line, policy_with(path, value))
        assert said.metadata == {"field": f"policy.{path}"}
        assert list(said.violations) == [f"policy.{path}"]
    for value in (lowest, highest):
        other = Line(line.stub, f"{line.name}-{value:.0f}")
        queue = (await create(other, policy_with(path, value))).queue
        assert value_at(queue.policy, path) == value
        await other.delete()


async def test_a_span_finer_than_a_millisecond_is_refused_in_a_policy(line: Line) -> None:
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await line.create(lease=span(500.5))
    assert list(said.violations) == ["policy.lease"]


async def test_everything_that_is_wrong_is_told_at_once(line: Line) -> None:
    with refused("FIELD_INVALID") as said:
        await line.create(bound=2_000_000_000, limit=2_000_000, lease=span(-5))
    assert set(said.violations) == {"policy.bound", "policy.limit", "policy.lease"}


async def test_of_50_parallel_creates_one_creates_and_49_are_told_so(line: Line) -> None:
    answers = await asyncio.gather(*(line.create(bound=5) for _ in range(50)))
    assert sorted(answer.created for answer in answers) == [False] * 49 + [True]
    assert len({answer.queue.generation for answer in answers}) == 1


async def test_of_50_parallel_creates_with_different_policies_one_wins_and_the_others_are_refused(line: Line) -> None:
    answers = await asyncio.gather(*(line.create(bound=n + 1) for n in range(50)), return_exceptions=True)
    winners = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert [answer.created for answer in winners] == [True]
    assert all(isinstance(answer, grpc.aio.AioRpcError) for answer in answers if answer not in winners)
    assert (await line.describe()).policy.bound == winners[0].queue.policy.bound


async def test_parallel_creates_through_two_processes_create_once(
    line: Line,
    store_server: StoreServer,
    prefix: str,
    make_service: Callable[..., ServiceProcess],
    connect: Callable[[str], grpc.aio.Channel],
) -> None:
    second = make_service(HEADWAY_REDIS_URL=store_server.url, PRESSURE_PREFIX=prefix)
    async with line_at(second.address, line.name, connect) as other:
        answers = await asyncio.gather(*(one.create() for one in (line, other) * 20))
    assert sorted(answer.created for answer in answers) == [False] * 39 + [True]


async def test_200_rounds_of_create_against_delete_leave_no_half_made_queue(line: Line, keys: Keys) -> None:
    async def create_it() -> None:
        await line.create(bound=2)

    async def delete_it() -> None:
        try:
            await line.delete()
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.NOT_FOUND

    for _ in range(200):
        await asyncio.gather(create_it(), delete_it(), create_it(), delete_it())
        # Either nothing is left, or a queue that works.
        if not keys.client.exists(keys["bound"]):
            assert keys.all() == set()
            continue
        tokens = ("producer_free", "consumer_free", "not_full")
        assert [keys.client.llen(keys[token]) for token in tokens] == [1, 1, 1]
        await line.put(b"one", b"two")
        assert [delivery.message.payload for delivery in await line.take(2)] == [b"one", b"two"]
        await line.delete()
        assert keys.all() == set()
