"""The calls of operators. What is not overridden here is not served yet."""
# ruff: noqa: N802 - the methods are named by the schema

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from importlib.metadata import version

from headway.v1 import admin_service_pb2, admin_service_pb2_grpc
from headwayd.rpc import admin_requests
from headwayd.rpc.conversion import (
    check_response,
    dead_response,
    leased_response,
    limits_message,
    queue_message,
    roles_message,
    store_message,
)
from headwayd.rpc.deadlines import store_budget_s
from headwayd.rpc.edge import Context
from headwayd.rpc.engine_port import Engine
from headwayd.rpc.spans import timestamp
from headwayd.rpc.text import clean_text


class AdminServicer(admin_service_pb2_grpc.AdminServiceServicer):
    """`headway.v1.AdminService`, as far as it is served. Meanings, errors, idempotency: the schema's comments."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._limits = engine.limits
        self._version = version("headwayd")

    async def Pause(self, request: admin_service_pb2.PauseRequest, context: Context) -> admin_service_pb2.PauseResponse:
        """Stops handing out messages of a queue."""
        self._engine.check_name(request.queue)
        queue = await self._engine.pause(request.queue, budget_s=store_budget_s(context))
        return admin_service_pb2.PauseResponse(queue=queue_message(queue))

    async def Resume(
        self, request: admin_service_pb2.ResumeRequest, context: Context
    ) -> admin_service_pb2.ResumeResponse:
        """Hands out messages again."""
        self._engine.check_name(request.queue)
        queue = await self._engine.resume(request.queue, budget_s=store_budget_s(context))
        return admin_service_pb2.ResumeResponse(queue=queue_message(queue))

    async def Purge(self, request: admin_service_pb2.PurgeRequest, context: Context) -> admin_service_pb2.PurgeResponse:
        """Removes every message that waits or is delayed."""
        self._engine.check_name(request.queue)
        purged = await self._engine.purge(request.queue, request.dead, budget_s=store_budget_s(context))
        return admin_service_pb2.PurgeResponse(waiting=purged.waiting, delayed=purged.delayed, dead=purged.dead)

    async def Repair(
        self, request: admin_service_pb2.RepairRequest, context: Context
    ) -> admin_service_pb2.RepairResponse:
        """Restores what a foreign client left behind that died."""
        self._engine.check_name(request.queue)
        repaired = await self._engine.repair(request.queue, request.confirm_holder, budget_s=store_budget_s(context))
        return admin_service_pb2.RepairResponse(
            findings=[clean_text(finding) for finding in repaired.findings],
            repaired=repaired.is_repaired,
            roles=roles_message(repaired.producer, repaired.consumer),
            queue=None if repaired.queue is None else queue_message(repaired.queue),
        )

    async def Check(self, request: admin_service_pb2.CheckRequest, context: Context) -> admin_service_pb2.CheckResponse:
        """Tells whether everything kept of a queue fits together."""
        self._engine.check_name(request.queue)
        max_entries = admin_requests.max_entries(request)
        checked = await self._engine.check(request.queue, max_entries, budget_s=store_budget_s(context))
        return check_response(checked)

    async def ListLeased(
        self, request: admin_service_pb2.ListLeasedRequest, context: Context
    ) -> admin_service_pb2.ListLeasedResponse:
        """Lists messages that are being worked on, and by whom."""
        self._engine.check_name(request.queue)
        most = admin_requests.most_leased(request, self._limits)
        return leased_response(await self._engine.list_leased(request.queue, most, budget_s=store_budget_s(context)))

    async def ListDead(
        self, request: admin_service_pb2.ListDeadRequest, context: Context
    ) -> admin_service_pb2.ListDeadResponse:
        """Lists dead messages, page by page."""
        self._engine.check_name(request.queue)
        page_size, page_token = admin_requests.dead_page(request, self._limits)
        page = await self._engine.list_dead(request.queue, page_size, page_token, budget_s=store_budget_s(context))
        return dead_response(page, without_payloads=request.without_payloads)

    async def Redrive(
        self, request: admin_service_pb2.RedriveRequest, context: Context
    ) -> AsyncIterator[admin_service_pb2.RedriveResponse]:
        """Puts dead messages back into a line, and streams how far it is."""
        self._engine.check_name(request.queue)
        order = admin_requests.redrive_order(request, self._limits)
        async with aclosing(self._engine.redrive(order, budget_s=store_budget_s(context))) as steps:
            async for progress in steps:
                yield admin_service_pb2.RedriveResponse(
                    redriven=progress.redriven,
                    remaining=progress.remaining,
                    not_found_ids=progress.not_found_ids,
                )

    async def GetServerInfo(
        self, request: admin_service_pb2.GetServerInfoRequest, context: Context
    ) -> admin_service_pb2.GetServerInfoResponse:
        """Tells the version, the limits, and what the store really is."""
        del request  # asks for nothing in particular
        facts = await self._engine.server_facts(budget_s=store_budget_s(context))
        return admin_service_pb2.GetServerInfoResponse(
            version=self._version,
            limits=limits_message(self._limits),
            store=store_message(facts.store),
            started_at=timestamp(facts.started_at_ms),
            process=facts.process,
        )
