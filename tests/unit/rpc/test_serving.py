"""What is true of every call: names are looked at first, deadlines are kept, and what is not served is told."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration

from harness.errors import refused
from headway.v1 import admin_service_pb2
from headway.v1 import queue_service_pb2 as pb
from unit.rpc.calling import AdminStub, QueueStub, answer_of
from unit.rpc.fake_engine import FakeEngine

NAMED = {
    "Create": pb.CreateRequest,
    "Describe": pb.DescribeRequest,
    "Update": pb.UpdateRequest,
    "Close": pb.CloseRequest,
    "Delete": pb.DeleteRequest,
    "WatchPosition": pb.WatchPositionRequest,
    "WatchQueue": pb.WatchQueueRequest,
    "Put": pb.PutRequest,
    "Get": pb.GetRequest,
    "Ack": pb.AckRequest,
    "Delay": pb.DelayRequest,
    "Extend": pb.ExtendRequest,
    "Withdraw": pb.WithdrawRequest,
    "Peek": pb.PeekRequest,
    "Pause": admin_service_pb2.PauseRequest,
    "Resume": admin_service_pb2.ResumeRequest,
    "Purge": admin_service_pb2.PurgeRequest,
    "Repair": admin_service_pb2.RepairRequest,
    "Check": admin_service_pb2.CheckRequest,
    "ListLeased": admin_service_pb2.ListLeasedRequest,
    "ListDead": admin_service_pb2.ListDeadRequest,
    "Redrive": admin_service_pb2.RedriveRequest,
}


@pytest.mark.parametrize("method", NAMED)
async def test_a_name_that_no_queue_can_have_is_refused_before_anything_else(
    method: str, stub: QueueStub, admin: AdminStub, engine: FakeEngine
) -> None:
    call: Any = getattr(stub, method, None) or getattr(admin, method)
    for name in ("", "a:closed", "x" * 201, "a\n"):
        with refused("NAME_REFUSED", grpc.StatusCode.INVALID_ARGUMENT) as said:
            await answer_of(call(NAMED[method](queue=name), timeout=5))
        assert said.metadata == {"field": "queue"}
        assert list(said.violations) == ["queue"]
    assert engine.calls == []


async def test_store_budget_and_wait_stay_within_the_deadline(stub: QueueStub, engine: FakeEngine) -> None:
    async def asked(timeout: float | None, wait_s: int = 30) -> tuple[int, float]:
        await stub.Get(pb.GetRequest(queue="q", wait=Duration(seconds=wait_s)), timeout=timeout)
        return engine.last.wait_ms, engine.budgets[-1]

    assert await asked(None) == (30_000, 2.0)
    assert await asked(60) == (30_000, 2.0)
    wait_ms, budget_s = await asked(30)
    assert 27_000 < wait_ms <= 28_000
    assert budget_s == 2.0
    wait_ms, budget_s = await asked(1)
    assert 500 < wait_ms <= 900
    assert 0.5 < budget_s <= 0.9
    # gRPC rounds timeouts up on their way; the wait must end before the caller's own deadline all the same.
    wait_ms, _ = await asked(3_600.5, wait_s=3_600)
    assert 3_500_000 < wait_ms <= 3_598_500


@pytest.mark.parametrize("method", ["Close", "Delete"])
async def test_the_last_step_of_a_call_that_waits_for_a_role_stays_within_the_deadline(
    method: str, stub: QueueStub, engine: FakeEngine
) -> None:
    await getattr(stub, method)(NAMED[method](queue="q", wait=Duration(seconds=30)), timeout=10)
    _, wait_ms, look_ms = engine.last
    assert wait_ms + look_ms < 10_000
    assert look_ms > 500


@pytest.mark.parametrize(
    ("service", "method"),
    [
        ("QueueService", "OfALaterVersion"),
    ],
)
async def test_calls_that_are_not_served_are_unimplemented_with_details(
    service: str, method: str, channel: grpc.aio.Channel
) -> None:
    path = f"/headway.v1.{service}/{method}"
    unary: Any = channel.unary_unary(path)
    stream: Any = channel.stream_stream(path)
    with refused("NOT_IMPLEMENTED", grpc.StatusCode.UNIMPLEMENTED) as said:
        await unary(b"", timeout=5)
    assert said.metadata == {"method": method}
    with refused("NOT_IMPLEMENTED", grpc.StatusCode.UNIMPLEMENTED):
        async for _ in stream(iter([b""]), timeout=5):
            pytest.fail("nothing is served")


async def test_every_call_of_the_schema_is_served(stub: QueueStub, admin: AdminStub) -> None:
    served = {*NAMED, "List", "GetServerInfo", "Produce", "Consume"}
    queue_service = pb.DESCRIPTOR.services_by_name["QueueService"]
    admin_service = admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"]
    assert served == {*queue_service.methods_by_name, *admin_service.methods_by_name}


async def test_other_services_are_unknown(channel: grpc.aio.Channel) -> None:
    call: Any = channel.unary_unary("/other.v1.Service/Call")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"", timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
