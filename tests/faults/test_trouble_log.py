"""What is logged in times of trouble: what the operator can mend, and nothing that is a caller's or a secret."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from faults.conftest import Open, Serve
from faults.moments import works
from harness import FaultProxy, StoreServer, eventually
from headway.v1 import admin_service_pb2
from wire.calls import Message

pytestmark = pytest.mark.any_store


async def test_trouble_with_the_store_is_logged_without_payloads_tokens_or_passwords(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open
) -> None:
    with fresh_store_server.client() as client:
        client.config_set("requirepass", "SECRET-PASSWORD")
    async with FaultProxy(fresh_store_server.port) as proxy:
        service = await serve(proxy.url.replace("redis://", "redis://:SECRET-PASSWORD@"))
        line = await open_line(service, "jobs")
        await line.create()
        await line.put(b"SECRET-PAYLOAD")
        lease = (await line.take_one()).lease
        for trouble in ("cut", "lost", "torn"):
            if trouble == "cut":
                proxy.cut()
            elif trouble == "lost":
                proxy.drop_replies = 1.0
            else:
                proxy.reset_mid_reply = 1.0
            for _ in range(15):
                answers = await asyncio.gather(
                    line.put(Message(id="SECRET-ID", payload=b"SECRET-PAYLOAD", headers={"k": "SECRET-HEADER"})),
                    line.ack(lease),
                    line.delay(lease, delay_ms=0, reason="SECRET-REASON"),
                    line.describe(),
                    return_exceptions=True,
                )
                assert all(isinstance(answer, grpc.aio.AioRpcError) for answer in answers)
            proxy.restore()
            await eventually(lambda: works(line))
        log = service.log.read_text(errors="replace")
    assert "SECRET" not in log
    assert lease not in log
    assert "never retrieved" not in log  # every failure belongs to somebody who answers for it


async def test_what_a_store_lacks_is_logged_when_it_comes_and_when_it_is_changed(
    fresh_store_server: StoreServer, serve: Serve, open_line: Open
) -> None:
    with fresh_store_server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        async with FaultProxy(fresh_store_server.port) as proxy:
            proxy.cut()
            service = await serve(proxy.url)
            await eventually(lambda: "store is not there yet" in service.log.read_text())
            proxy.restore()
            await eventually(lambda: "maxmemory-policy is allkeys-lru" in service.log.read_text(), within=20)
            client.config_set("maxmemory-policy", "volatile-ttl")
            line = await open_line(service, "jobs")
            assert line.admin
            await line.admin.GetServerInfo(admin_service_pb2.GetServerInfoRequest(), timeout=5)  # which looks
            await eventually(lambda: "maxmemory-policy is volatile-ttl" in service.log.read_text())
