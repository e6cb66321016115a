# ruff: noqa: N802 - the methods are named after the RPCs
"""The operators' half of the in-memory service."""

from collections.abc import AsyncIterator
from typing import Any

from client.fake_core import FakeCore, FakeQueue, Held
from headway.v1 import admin_service_pb2 as pb
from headway.v1.message_pb2 import Message

_PAGE_SIZE = 2  # pages are never larger, so that tests see several


def dead_message(message_id: str, *, failures: int = 3, cause: str = "attempts", replays: int = 0) -> pb.DeadMessage:
    """A dead message as a test wants it."""
    dead = pb.DeadMessage(failures=failures, cause=cause, last_error="it broke", replays=replays)
    dead.message.CopyFrom(Message(id=message_id, payload=b"body of " + message_id.encode()))
    dead.died_at.FromSeconds(1_800_000_000)
    return dead


class FakeAdmin(FakeCore):
    """AdminService. `broken_off` counts the redrives whose callers went away."""

    def __init__(self) -> None:
        super().__init__()
        self.broken_off = 0

    async def Pause(self, request: pb.PauseRequest, context: Any) -> pb.PauseResponse:
        return pb.PauseResponse(queue=(await self._set_paused("Pause", request, context, to=True)).state())

    async def Resume(self, request: pb.ResumeRequest, context: Any) -> pb.ResumeResponse:
        return pb.ResumeResponse(queue=(await self._set_paused("Resume", request, context, to=False)).state())

    async def _set_paused(self, method: str, request: Any, context: Any, *, to: bool) -> FakeQueue:
        await self.begin(method, request, context)
        queue = await self.find(request.queue, context)
        queue.paused = to
        return queue

    async def Purge(self, request: pb.PurgeRequest, context: Any) -> pb.PurgeResponse:
        await self.begin("Purge", request, context)
        queue = await self.find(request.queue, context)
        gone = pb.PurgeResponse(waiting=len(queue.line), delayed=len(queue.delayed))
        queue.line.clear()
        queue.delayed.clear()
        return gone

    async def Repair(self, request: pb.RepairRequest, context: Any) -> pb.RepairResponse:
        await self.begin("Repair", request, context)
        await self.find(request.queue, context)
        return pb.RepairResponse(findings=["the producer role is held by ghost"])

    async def Check(self, request: pb.CheckRequest, context: Any) -> pb.CheckResponse:
        await self.begin("Check", request, context)
        queue = await self.find(request.queue, context)
        return pb.CheckResponse(findings=queue.findings, entries=len(queue.line), counts=queue.state().counts)

    async def ListLeased(self, request: pb.ListLeasedRequest, context: Any) -> pb.ListLeasedResponse:
        await self.begin("ListLeased", request, context)
        queue = await self.find(request.queue, context)
        leased = [
            pb.LeasedMessage(id=held.message.id, ticket=held.ticket, consumer="me", attempt=held.attempt)
            for held in list(queue.leased.values())[: request.max_messages]
        ]
        return pb.ListLeasedResponse(messages=leased)

    async def ListDead(self, request: pb.ListDeadRequest, context: Any) -> pb.ListDeadResponse:
        await self.begin("ListDead", request, context)
        queue = await self.find(request.queue, context)
        first = int(request.page_token or 0)
        page = [pb.DeadMessage.FromString(d.SerializeToString()) for d in queue.dead[first : first + _PAGE_SIZE]]
        if request.without_payloads:
            for dead in page:
                dead.message.payload = b""
        rest = len(queue.dead) > first + _PAGE_SIZE
        return pb.ListDeadResponse(messages=page, next_page_token=str(first + _PAGE_SIZE) if rest else "")

    async def Redrive(self, request: pb.RedriveRequest, context: Any) -> AsyncIterator[pb.RedriveResponse]:
        """One message a step; waits while the target is full."""
        failure = await self.begin("Redrive", request, context)
        queue = await self.find(request.queue, context)
        target = await self.find(request.to_queue or request.queue, context)
        ids = [d.message.id for d in queue.dead]
        wanted = [i for i in ids if i in request.message_ids] if request.message_ids else ids
        is_whole = False
        try:
            yield pb.RedriveResponse(remaining=len(wanted))
            for count, message_id in enumerate(wanted, 1):
                await self.wait_for(lambda: not target.is_full)
                dead = next(d for d in queue.dead if d.message.id == message_id)
                queue.dead.remove(dead)
                target.line.append(Held(ticket=next(target.tickets), message=dead.message, attempt=1))
                await self.end(context, failure)
                yield pb.RedriveResponse(redriven=count, remaining=len(wanted) - count)
            is_whole = True
        finally:
            if not is_whole:
                self.broken_off += 1
                await self.notify()
        missing = [i for i in request.message_ids if i not in wanted]
        yield pb.RedriveResponse(redriven=len(wanted), not_found_ids=missing)

    async def GetServerInfo(self, request: pb.GetServerInfoRequest, context: Any) -> pb.GetServerInfoResponse:
        await self.begin("GetServerInfo", request, context)
        return pb.GetServerInfoResponse(version="0.0.fake", limits=self.limits)
