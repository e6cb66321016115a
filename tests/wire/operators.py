"""Short words for what operators do to one queue, beside those of `wire.calls`."""

from __future__ import annotations

from collections.abc import Sequence

from headway.v1 import admin_service_pb2, admin_service_pb2_grpc, queue_pb2
from wire.calls import DEAD, SLACK_S, Line, Message, leases, message

ONE_ATTEMPT = queue_pb2.Retry(max_attempts=1)


def admin_of(line: Line) -> admin_service_pb2_grpc.AdminServiceAsyncStub:
    """The stub of the calls of operators."""
    assert line.admin is not None
    return line.admin


async def list_dead(line: Line, **fields: object) -> admin_service_pb2.ListDeadResponse:
    """One page of the dead."""
    request = admin_service_pb2.ListDeadRequest(queue=line.name, **fields)  # type: ignore[arg-type]
    return await admin_of(line).ListDead(request, timeout=SLACK_S)


async def all_dead(line: Line, **fields: object) -> list[admin_service_pb2.DeadMessage]:
    """All the dead, page by page."""
    found: list[admin_service_pb2.DeadMessage] = []
    token = ""
    while True:
        page = await list_dead(line, page_token=token, **fields)
        found += page.messages
        token = page.next_page_token
        if not token:
            return found


async def redrive(line: Line, *ids: str, to: str = "", rate: float = 0.0) -> list[admin_service_pb2.RedriveResponse]:
    """Puts the dead back, and waits for the end; all that was told on the way."""
    request = admin_service_pb2.RedriveRequest(queue=line.name, message_ids=ids, to_queue=to, rate=rate)
    return [told async for told in admin_of(line).Redrive(request, timeout=4 * SLACK_S)]


async def check(line: Line, *, max_entries: int = 0) -> admin_service_pb2.CheckResponse:
    """Whether everything fits together."""
    request = admin_service_pb2.CheckRequest(queue=line.name, max_entries=max_entries)
    return await admin_of(line).Check(request, timeout=SLACK_S)


async def assert_sound(line: Line) -> None:
    """Nothing is wrong with the queue."""
    checked = await check(line)
    assert list(checked.findings) == []


async def bury(line: Line, *messages: bytes | Message, reason: str = "no luck") -> None:
    """Puts messages into a queue of one attempt and fails each, in order. Nothing else may wait."""
    for start in range(0, len(messages), 1_000):
        batch = [message(one) for one in messages[start : start + 1_000]]
        await line.put(*batch)
        await fail(line, leases(await line.take(len(batch))), reason=reason)


def numbered(number: int, payload: bytes = b"x") -> Message:
    """A message with the id m<number>."""
    return Message(id=f"m{number}", payload=payload)


async def with_dead(line: Line, count: int, **policy: object) -> None:
    """Makes the queue, with so many dead: m0, m1 … with their numbers as payloads."""
    await line.create(retry=ONE_ATTEMPT, **policy)
    await bury(line, *(numbered(number, b"%d" % number) for number in range(count)))


async def fail(line: Line, tokens: Sequence[str], *, reason: str = "no luck") -> None:
    """Gives back messages that have no attempt left."""
    results = await line.delay(*tokens, delay_ms=0, reason=reason)
    assert {result.settled for result in results} == {DEAD}
