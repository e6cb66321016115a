"""What the calls send, what they repeat, and how many messages become batches."""

import re
from datetime import UTC, datetime, timedelta, timezone

import grpc
import pytest

import headway
from client.fake_service import Failure, FakeQueue, FakeService
from headway._spans import exact, instant
from headway.core.connecting import span
from headway.core.error import from_status
from headway.v1.error_reason_pb2 import ErrorReason
from headway.v1.message_pb2 import OnDuplicate, Status

LOST = Failure(code=grpc.StatusCode.UNAVAILABLE)
LOST_AFTER = Failure(code=grpc.StatusCode.UNAVAILABLE, reason="OUTCOME_UNKNOWN", is_after=True)
ENDED = Failure(code=grpc.StatusCode.CANCELLED)  # as gRPC does to calls that a process which goes has not begun
NOT_DONE = Failure(code=grpc.StatusCode.UNAVAILABLE, reason="SHUTTING_DOWN")


@pytest.mark.parametrize(
    ("microseconds", "milliseconds"), [(0, 0), (1, 1), (999, 1), (1000, 1), (1001, 2), (10**9 + 1, 10**6 + 1)]
)
def test_spans_are_rounded_up_to_milliseconds(microseconds: int, milliseconds: int) -> None:
    wire = span(timedelta(microseconds=microseconds))
    assert wire is not None
    assert wire.ToMicroseconds() == milliseconds * 1000


def test_negative_span_is_sent_for_the_service_to_refuse() -> None:
    wire = span(timedelta(microseconds=-1))
    assert wire is not None
    assert wire.ToMicroseconds() == -1


def test_what_is_no_span_or_instant_is_refused_at_once() -> None:
    with pytest.raises(TypeError):
        exact(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="time zone"):
        instant(datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(ValueError, match="outside of the years"):
        instant(datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))))
    assert instant(datetime(2030, 1, 1, tzinfo=UTC)).ToSeconds() == 1893456000


async def test_policy_fields_travel_and_update_names_them(service: FakeService, client: headway.Client) -> None:
    queue = client.queue("new")
    policy = headway.Policy(bound=7)
    assert (await queue.create(policy, lease=timedelta(seconds=5), max_attempts=3)).created
    assert not (await queue.create(policy, lease=timedelta(seconds=5), max_attempts=3)).created
    with pytest.raises(headway.QueueExists):
        await queue.create()
    assert (await queue.describe()).policy.retry.max_attempts == 3
    assert (await queue.describe()).policy.bound == 7
    assert not (await queue.describe()).policy.dead_letter_expired
    changed = await queue.update(time_to_live=timedelta(hours=1), dead_letter_expired=True)
    assert changed.policy.time_to_live.ToSeconds() == 3600
    assert changed.policy.dead_letter_expired
    assert not (await queue.update(time_to_live=None, dead_letter_expired=None)).policy.HasField("time_to_live")
    state = await queue.update(bound=9, max_attempts=None)
    assert list(service.requests("Update")[-1].update_mask.paths) == ["bound", "retry.max_attempts"]
    assert (state.policy.bound, state.policy.retry.max_attempts) == (9, 0)
    polled = await queue.update(poll_base=timedelta(seconds=2), poll_strikes=1)
    assert list(service.requests("Update")[-1].update_mask.paths) == ["poll.base", "poll.strikes"]
    assert (polled.policy.poll.base.ToSeconds(), polled.policy.poll.strikes) == (2, 1)
    made = await client.queue("polled").create(poll_strikes=5, poll=polled.policy.poll)
    assert (made.queue.policy.poll.base.ToSeconds(), made.queue.policy.poll.strikes) == (2, 5)
    with pytest.raises(TypeError):
        await queue.create(size=3)  # type: ignore[call-arg]


async def test_listing_goes_through_all_pages(client: headway.Client) -> None:
    for name in ("a1", "a2", "a3", "b1"):
        await client.queue(name).create()
    assert [queue.name async for queue in client.list_queues("a")] == ["a1", "a2", "a3"]


async def test_address_comes_from_the_environment(
    service: FakeService, made: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_ADDRESS", service.address)
    async with headway.connect() as client:
        assert (await client.queue("q").describe()).name == "q"


@pytest.mark.parametrize(
    ("target", "wrong"),
    [
        ("one:1,two:2", "one:1"),
        ("10.0.0.1:1,two:2", "two:2"),
        ("ipv4:10.0.0.1:1,two:2", "two:2"),
        ("10.0.0.1:1,10.0.0.2", "10.0.0.2"),
        ("10.0.0.1:1,[::1]:2", "[::1]:2"),
        ("[::1]:1,10.0.0.1:2", "10.0.0.1:2"),
        ("[::1]:1,[two]:2", "[two]:2"),
        ("dns:///one:1,two:2", "dns:///one:1"),
    ],
)
def test_several_addresses_of_which_grpc_takes_no_list_are_refused(
    monkeypatch: pytest.MonkeyPatch, target: str, wrong: str
) -> None:
    monkeypatch.setenv("HEADWAY_ADDRESS", target)
    for given in (target, None):
        with pytest.raises(ValueError, match=re.escape(f"'{wrong}' cannot stand among several addresses")):
            headway.connect(given)


@pytest.mark.parametrize(
    "target",
    ["10.0.0.1:1,10.0.0.2:2", "ipv4:10.0.0.1:1,10.0.0.2:2", "[::1]:1, [fd00::1]:2,", "one:1", "one:1,", "dns:///one:1"],
)
def test_addresses_of_which_grpc_takes_lists_and_single_names_are_taken(target: str) -> None:
    headway.connect(target)


@pytest.mark.parametrize("failure", [LOST, ENDED], ids=["unavailable", "cancelled by the service"])
async def test_safe_calls_are_repeated(service: FakeService, queue: headway.Queue, failure: Failure) -> None:
    service.fail_next("Describe", failure, times=2)
    assert (await queue.describe()).name == "q"
    assert len(service.requests("Describe")) == 3


async def test_close_is_not_repeated(service: FakeService, queue: headway.Queue) -> None:
    service.fail_next("Close", LOST)
    with pytest.raises(headway.Unavailable):
        await queue.close()
    assert [name for name, _ in service.calls] == ["Close"]


@pytest.mark.parametrize("longest", [timedelta(0), timedelta(milliseconds=500)])
async def test_queue_can_be_ended_where_no_call_may_wait_long(
    service: FakeService, queue: headway.Queue, longest: timedelta
) -> None:
    service.limits.max_wait.FromTimedelta(longest)
    assert (await queue.close()).closed
    await queue.delete()
    assert not service.queues


async def test_delete_is_waited_for_as_long_as_the_service_waits_if_nothing_is_said(
    service: FakeService, made: FakeQueue
) -> None:
    async with headway.connect(service.address, call_timeout=timedelta(microseconds=1)) as hasty:
        await hasty.queue("q").delete()
    assert not service.queues


async def test_put_without_ids_is_not_repeated_when_its_outcome_is_unknown(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    service.fail_next("Put", LOST_AFTER)
    with pytest.raises(headway.OutcomeUnknown):
        await queue.put(b"x")
    assert len(made.line) == 1


async def test_put_is_repeated_when_nothing_happened(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    service.fail_next("Put", NOT_DONE, times=2)
    assert (await queue.put(b"x")).position == 1
    assert len(service.requests("Put")) == 3
    assert service.requests("Put")[2].on_duplicate == OnDuplicate.ON_DUPLICATE_REJECT


async def test_put_that_the_service_cancelled_is_repeated_if_it_has_an_id(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    service.fail_next("Put", ENDED, times=2)
    assert (await queue.put(b"x", id="a")).position == 1
    service.fail_next("Put", ENDED)
    with pytest.raises(headway.Unavailable) as caught:
        await queue.put(b"x")
    assert caught.value.is_outcome_unknown
    assert len(made.line) == 1


async def test_put_with_an_id_is_repeated_and_accepted_once(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    service.fail_next("Put", LOST_AFTER)
    result = await queue.put(b"x", id="a")
    assert result.deduplicated
    assert [held.message.id for held in made.line] == ["a"]
    with pytest.raises(headway.DuplicateMessage):
        await queue.put(b"x", id="a")


async def test_repeated_put_is_refused_if_another_message_has_its_id(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put(b"theirs", id="a")
    service.fail_next("Put", LOST)
    with pytest.raises(headway.DuplicateMessage) as caught:
        await queue.put(b"mine", id="a")
    assert dict(caught.value.metadata) == {"queue": "q", "id": "a"}
    assert [held.message.payload for held in made.line] == [b"theirs"]


async def test_kept_message_tells_if_its_body_is_another(queue: headway.Queue) -> None:
    await queue.put(b"x", id="a")
    assert not (await queue.put(b"x", id="a", on_duplicate="keep")).body_differs
    assert (await queue.put(b"y", id="a", on_duplicate="keep")).body_differs


async def test_put_that_replaces_is_repeated_as_it_is(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    await queue.put(b"old", id="a")
    service.fail_next("Put", LOST_AFTER)
    await queue.put(b"new", id="a", on_duplicate="replace")
    assert [held.message.payload for held in made.line] == [b"new"]
    assert service.requests("Put")[2].on_duplicate == OnDuplicate.ON_DUPLICATE_REPLACE


async def test_put_sends_what_it_was_given(service: FakeService, queue: headway.Queue) -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    await queue.put(b"x", headers={"k": "v"}, time_to_live=timedelta(hours=1), producer="me")
    await queue.put(b"y", delay=moment, on_duplicate="replace")
    await queue.put(headway.Message(payload=b"z"))
    first, second, third = service.requests("Put")
    assert dict(first.messages[0].headers) == {"k": "v"}
    assert first.messages[0].time_to_live.ToSeconds() == 3600
    assert first.producer == "me"
    assert second.messages[0].not_before.ToDatetime(UTC) == moment
    assert second.on_duplicate == OnDuplicate.ON_DUPLICATE_REPLACE
    assert third.messages[0].payload == b"z"
    with pytest.raises(TypeError):
        await queue.put("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await queue.put(headway.Message(), id="a")
    with pytest.raises(ValueError, match="on_duplicate"):
        await queue.put(b"", on_duplicate="maybe")  # type: ignore[arg-type]


async def test_many_messages_are_split_by_count_and_by_bytes(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    service.limits.max_batch_messages = 10
    service.limits.max_request_bytes = 4096
    payloads = [b"%d" % i for i in range(25)] + [b"x" * 1500] * 4
    results = await queue.put_many(payloads)
    assert [result.ticket for result in results] == list(range(1, 30))
    assert [held.message.payload for held in made.line] == payloads
    requests = service.requests("Put")
    assert [len(r.messages) for r in requests[:2]] == [10, 10]
    assert all(r.ByteSize() <= 4096 for r in requests)
    assert len(service.requests("GetServerInfo")) == 1


async def test_messages_behind_a_full_queue_are_not_sent(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    service.limits.max_batch_messages = 2
    made.policy.bound = 3
    results = await queue.put_many([b"1", b"2", b"3", b"4", b"5"])
    assert [bool(r.error.code) for r in results] == [False, False, False, True, True]
    assert results[4].error.reason == ErrorReason.ERROR_REASON_QUEUE_FULL
    assert len(service.requests("Put")) == 2
    with pytest.raises(headway.QueueFull):
        await queue.put_many([b"6"])


@pytest.mark.parametrize("reason", ["SHUTTING_DOWN", "STORE_UNAVAILABLE", "STORE_FULL", "QUOTA_EXCEEDED"])
async def test_messages_behind_those_that_may_be_taken_later_are_not_sent(
    service: FakeService, queue: headway.Queue, made: FakeQueue, reason: str
) -> None:
    service.limits.max_batch_messages = 2
    service.cuts = [(1, Status(message="not now", reason=ErrorReason.Value(f"ERROR_REASON_{reason}")))]
    results = await queue.put_many([b"1", b"2", b"3", b"4", b"5"])
    assert [r.ticket for r in results] == [1, 0, 0, 0, 0]
    assert {from_status(r.error).reason_name for r in results[1:]} == {reason}
    assert [held.message.payload for held in made.line] == [b"1"]
    assert (await queue.put_many([b"2", b"3", b"4"]))[2].ticket == 4


async def test_messages_behind_those_that_are_refused_for_good_are_sent(
    service: FakeService, queue: headway.Queue, made: FakeQueue
) -> None:
    service.limits.max_batch_messages = 2
    first, second = headway.Message(id="x", payload=b"1"), headway.Message(id="x", payload=b"2")
    results = await queue.put_many([first, second, b"3"])
    assert [r.ticket for r in results] == [1, 0, 2]
    assert isinstance(from_status(results[1].error), headway.DuplicateMessage)


async def test_failure_between_batches_tells_what_was_accepted(service: FakeService, queue: headway.Queue) -> None:
    service.limits.max_batch_messages = 1
    refusal = Failure(code=grpc.StatusCode.PERMISSION_DENIED, reason="PERMISSION_DENIED")
    service.failures["Put"] = [None, None, refusal]
    with pytest.raises(headway.PermissionDenied) as caught:
        await queue.put_many([b"1", b"2", b"3", b"4"])
    assert [r.ticket for r in caught.value.results] == [1, 2]
    assert len(service.requests("Put")) == 3


async def test_peek_and_server_info_answer(queue: headway.Queue, client: headway.Client, made: FakeQueue) -> None:
    await queue.put_many([b"1", b"2"])
    assert [m.message.payload for m in await queue.peek(5, from_position=2)] == [b"2"]
    assert (await client.server_info()).version == "0.0.fake"
    assert (await queue.close()).closed
    await queue.delete()
    with pytest.raises(headway.QueueNotFound):
        await queue.describe()
