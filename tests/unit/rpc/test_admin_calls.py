"""Every served call of operators: what the engine is asked, and what the caller gets."""

from __future__ import annotations

from dataclasses import replace

import grpc
import grpc.aio

from harness.errors import refused
from headway.v1 import admin_service_pb2, message_pb2
from headwayd.domain.errors import QueueClosed
from headwayd.domain.limits import Limits
from headwayd.domain.model import DeadMessage, DeadPage, RedriveOrder, Repaired, Role
from headwayd.domain.places import LeasedMessage, Progress
from unit.rpc.calling import AdminStub, answer_of, at
from unit.rpc.fake_engine import FakeEngine


async def test_admin_calls(admin: AdminStub, engine: FakeEngine) -> None:
    assert (await admin.Pause(admin_service_pb2.PauseRequest(queue="q"), timeout=5)).queue.paused
    assert not (await admin.Resume(admin_service_pb2.ResumeRequest(queue="q"), timeout=5)).queue.paused
    purged = await admin.Purge(admin_service_pb2.PurgeRequest(queue="q", dead=True), timeout=5)
    assert engine.last == ("q", True)
    assert (purged.waiting, purged.delayed, purged.dead) == (1, 2, 3)
    repaired = await admin.Repair(admin_service_pb2.RepairRequest(queue="q", confirm_holder="old"), timeout=5)
    assert engine.last == ("q", "old")
    assert (repaired.repaired, list(repaired.findings)) == (True, ["the producer role is lost"])
    assert (repaired.roles.producer.holder, repaired.queue.name) == ("old", "q")
    finished = Repaired(findings=[], is_repaired=True, producer=Role(), consumer=Role(), queue=None)
    engine.answers["repair"] = finished
    reply = await admin.Repair(admin_service_pb2.RepairRequest(queue="q"), timeout=5)
    assert not reply.HasField("queue")


async def test_check(admin: AdminStub, engine: FakeEngine) -> None:
    checked = await admin.Check(admin_service_pb2.CheckRequest(queue="q"), timeout=5)
    assert engine.last == ("q", 1_000_000)
    assert (list(checked.findings), checked.entries, checked.counts.length) == (["one", "two"], 7, 3)
    await admin.Check(admin_service_pb2.CheckRequest(queue="q", max_entries=5), timeout=5)
    assert engine.last == ("q", 5)


async def test_list_dead(admin: AdminStub, engine: FakeEngine) -> None:
    dead = DeadMessage(
        id="m",
        payload=b"body",
        headers=message_pb2.Message(headers={"a": "1"}).SerializeToString(deterministic=True),
        failures=3,
        died_at_ms=1_700_000_000_001,
        cause="attempts",
        last_error="boom",
        replays=2,
        put_at_ms=1_700_000_000_000,
    )
    engine.answers["list_dead"] = DeadPage([dead, replace(dead, put_at_ms=None, last_error="\udcff")], "next")
    request = admin_service_pb2.ListDeadRequest(queue="q", page_size=7, page_token="t")
    page = await admin.ListDead(request, timeout=5)
    assert engine.last == ("q", 7, "t")
    assert page.next_page_token == "next"
    assert page.messages[0] == admin_service_pb2.DeadMessage(
        message=message_pb2.Message(id="m", payload=b"body", headers={"a": "1"}),
        failures=3,
        died_at=at(1_700_000_000_001),
        cause="attempts",
        last_error="boom",
        replays=2,
        put_at=at(1_700_000_000_000),
    )
    assert (page.messages[1].HasField("put_at"), page.messages[1].last_error) == (False, "?")
    bare = await admin.ListDead(admin_service_pb2.ListDeadRequest(queue="q", without_payloads=True), timeout=5)
    assert engine.last == ("q", 100, "")
    assert [entry.message.payload for entry in bare.messages] == [b"", b""]


async def test_list_leased(admin: AdminStub, engine: FakeEngine) -> None:
    leased = LeasedMessage(
        id="m",
        ticket=7,
        consumer="worker",
        attempt=2,
        leased_at_ms=1_700_000_000_000,
        lease_expires_at_ms=1_700_000_030_000,
        progress=Progress(0.5, "half"),
        put_at_ms=1_600_000_000_000,
    )
    unknown = replace(leased, consumer="", leased_at_ms=None, progress=None, put_at_ms=None)
    engine.answers["list_leased"] = [leased, unknown]
    told = await admin.ListLeased(admin_service_pb2.ListLeasedRequest(queue="q", max_messages=5), timeout=5)
    assert engine.last == ("q", 5)
    assert told.messages[0] == admin_service_pb2.LeasedMessage(
        id="m",
        ticket=7,
        consumer="worker",
        attempt=2,
        leased_at=at(1_700_000_000_000),
        lease_expires_at=at(1_700_000_030_000),
        progress=message_pb2.Progress(fraction=0.5, note="half"),
        put_at=at(1_600_000_000_000),
    )
    assert not any(told.messages[1].HasField(name) for name in ("leased_at", "progress", "put_at"))


async def test_redrive_streams_how_far_it_is(admin: AdminStub, engine: FakeEngine) -> None:
    request = admin_service_pb2.RedriveRequest(queue="q", message_ids=["b", "a", "b"], to_queue="other", rate=2.5)
    told = await answer_of(admin.Redrive(request, timeout=5))
    assert engine.last == RedriveOrder(queue="q", message_ids=("b", "a"), to_queue="other", rate=2.5)
    assert [(t.redriven, t.remaining, list(t.not_found_ids)) for t in told] == [(1, 2, []), (2, 0, ["x"])]
    await answer_of(admin.Redrive(admin_service_pb2.RedriveRequest(queue="q", to_queue="q"), timeout=5))
    assert engine.last == RedriveOrder(queue="q")


async def test_redrive_fails_as_any_call_does(admin: AdminStub, engine: FakeEngine) -> None:
    engine.error = QueueClosed("closed", metadata={"queue": "other"})
    with refused("QUEUE_CLOSED", grpc.StatusCode.FAILED_PRECONDITION) as said:
        await answer_of(admin.Redrive(admin_service_pb2.RedriveRequest(queue="q", to_queue="other"), timeout=5))
    assert said.metadata == {"queue": "other"}
    with refused("NAME_REFUSED", grpc.StatusCode.INVALID_ARGUMENT) as said:
        await answer_of(admin.Redrive(admin_service_pb2.RedriveRequest(queue="q", to_queue="q:closed"), timeout=5))
    assert said.metadata == {"field": "to_queue"}


async def test_server_info(admin: AdminStub) -> None:
    info = await admin.GetServerInfo(admin_service_pb2.GetServerInfoRequest(), timeout=5)
    assert info.version
    assert info.process == "host:1"
    assert info.started_at == at(1_700_000_000_000)
    assert (info.store.kind, info.store.reachable, list(info.store.warnings)) == ("valkey", True, ["w"])
    assert info.limits.max_batch_messages == Limits().max_batch_messages
    assert info.limits.max_wait.ToSeconds() == 3_600
    assert all(getattr(info.limits, field.name) for field in info.limits.DESCRIPTOR.fields)
