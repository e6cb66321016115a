"""GetServerInfo: the version, the limits, and what the store really is."""

from __future__ import annotations

import headwayd
from harness import ServiceProcess
from headway.v1 import admin_service_pb2
from wire.calls import SLACK_S, Line


async def info(line: Line) -> admin_service_pb2.GetServerInfoResponse:
    assert line.admin is not None
    return await line.admin.GetServerInfo(admin_service_pb2.GetServerInfoRequest(), timeout=SLACK_S)


async def test_the_service_tells_what_it_is_and_accepts(line: Line, service: ServiceProcess) -> None:
    told = await info(line)
    assert told.version
    assert getattr(headwayd, "__version__", told.version) == told.version
    limits = told.limits
    assert (limits.max_message_bytes, limits.max_batch_messages) == (1024 * 1024, 1_000)
    assert (limits.max_request_bytes, limits.max_response_bytes) == (8 * 1024 * 1024, 3 * 1024 * 1024)
    assert (limits.max_wait.seconds, limits.max_lease.seconds) == (3_600, 12 * 3_600)
    assert limits.max_delay.seconds == 366 * 24 * 3_600
    assert told.process
    assert told.started_at.seconds > 1_700_000_000


async def test_the_store_is_told_as_it_is(line: Line, store_kind: str, prefix: str, redis_client: object) -> None:
    store = (await info(line)).store
    facts = redis_client.info("server")  # type: ignore[attr-defined]
    assert store.kind == store_kind
    assert store.version == facts.get("valkey_version", facts["redis_version"])
    assert (store.reachable, store.embedded, store.prefix) == (True, False, prefix)
    assert store.durability == "memory"  # the shared test server writes nothing down
