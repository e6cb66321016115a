"""Leases and delays where an operator lets them be short: the limit holds whatever callers and policies say."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import grpc
import pytest

from harness import ServiceProcess, StoreServer, refused
from wire.calls import DELAYED, INVALID_ARGUMENT, Line, Message, instant, line_at, now_ms

Connect = Callable[[str], grpc.aio.Channel]
# Lower than what a queue's policy says, and than what callers ask for.
SHORT = {"HEADWAY_MAX_LEASE": "10s", "HEADWAY_MAX_DELAY": "1h"}
SHORT_LEASE_MS, SHORT_DELAY_MS = 10_000, 3_600_000


@pytest.fixture
async def short(
    make_service: Callable[..., ServiceProcess], store_server: StoreServer, queue_name: str, connect: Connect
) -> AsyncIterator[Line]:
    """A queue through a service that lets neither leases nor delays be long."""
    service = make_service(HEADWAY_REDIS_URL=store_server.url, PRESSURE_PREFIX=f"__{queue_name}__", **SHORT)
    async with line_at(service.address, "jobs", connect) as line:
        yield line


async def test_no_lease_is_longer_than_the_service_allows_whatever_the_policy_says(
    short: Line, store_server: StoreServer
) -> None:
    await short.create()
    assert (await short.describe()).policy.lease.seconds == 30
    await short.put(b"x")
    with store_server.client() as client:
        asked_at = now_ms(client)
        taken = await short.take_one()
        got_at = now_ms(client)
        assert asked_at - 1 <= taken.lease_expires_at.ToMilliseconds() - SHORT_LEASE_MS <= got_at
        [extended] = await short.extend(taken.lease)
        assert got_at - 1 <= extended.available_at.ToMilliseconds() - SHORT_LEASE_MS <= now_ms(client)


async def test_no_call_delays_a_message_for_longer_than_the_service_allows(
    short: Line, store_server: StoreServer
) -> None:
    await short.create()
    with store_server.client() as client:
        asked_at = int(now_ms(client))
    late = asked_at + SHORT_DELAY_MS + 60_000
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await short.put(b"x", Message(payload=b"late", not_before=instant(late)))
    assert said.violations == {"messages[1].not_before": "is more than 1 h ahead"}
    await short.put(Message(payload=b"delayed", id="a", not_before=instant(asked_at + SHORT_DELAY_MS)), b"x")
    lease = (await short.take_one()).lease
    for which in ([lease], []):
        with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
            await short.delay(*which, message_ids=["a"], until_ms=late)
        assert said.violations == {"until": "is more than 1 h ahead"}
    assert [one.settled for one in await short.delay(lease, until_ms=asked_at + SHORT_DELAY_MS)] == [DELAYED]
    assert (await short.counts()).delayed == 2
