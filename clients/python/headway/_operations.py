"""What operators do with a queue: pause and purge it, look after its dead, check and repair it."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from headway.v1 import admin_service_pb2 as pb
from headway.v1.queue_pb2 import Queue as QueueState

if TYPE_CHECKING:
    from headway._client import Client

_PAGE_SIZE = 100


class Operations:
    """The operators' part of `Queue`: the calls of AdminService that name a queue."""

    def __init__(self, client: "Client", name: str) -> None:
        self.client = client
        self.name = name
        self._connection = client.connection

    async def pause(self) -> QueueState:
        """Lets the queue take messages and hand none out until `resume`. Idempotent. Raises QueueNotFound."""
        request = pb.PauseRequest(queue=self.name)
        response: pb.PauseResponse = await self._connection.call(self._connection.admin.Pause, request)
        return response.queue

    async def resume(self) -> QueueState:
        """Ends a pause. Idempotent. Raises QueueNotFound."""
        request = pb.ResumeRequest(queue=self.name)
        response: pb.ResumeResponse = await self._connection.call(self._connection.admin.Resume, request)
        return response.queue

    async def purge(self, *, dead: bool = False) -> pb.PurgeResponse:
        """Removes what waits or is delayed, and the dead if asked; leased messages stay. Raises QueueNotFound."""
        return await self._connection.call(self._connection.admin.Purge, pb.PurgeRequest(queue=self.name, dead=dead))

    async def repair(self, *, confirm_holder: str = "") -> pb.RepairResponse:
        """Tells what a foreign client that died left behind, and puts it right if its name is confirmed.

        Raises QueueNotFound, and RoleInUse if the role's holder is not the one confirmed.
        """
        request = pb.RepairRequest(queue=self.name, confirm_holder=confirm_holder)
        return await self._connection.call(self._connection.admin.Repair, request)

    async def check(self, *, max_entries: int = 0) -> pb.CheckResponse:
        """Tells whether everything kept of the queue fits together: no `findings` if so. Changes nothing.

        Holds up the store for about a second per million entries, so a queue with more than `max_entries` (0:
        1,000,000) is refused with TooLarge. Raises QueueNotFound.
        """
        request = pb.CheckRequest(queue=self.name, max_entries=max_entries)
        return await self._connection.call(self._connection.admin.Check, request)

    async def leased(self, max_messages: int = _PAGE_SIZE) -> Sequence[pb.LeasedMessage]:
        """Who works on what: up to so many messages (1 to 1000), those first whose lease ends first. Raises
        QueueNotFound."""
        request = pb.ListLeasedRequest(queue=self.name, max_messages=max_messages)
        response: pb.ListLeasedResponse = await self._connection.call(self._connection.admin.ListLeased, request)
        return response.messages

    async def dead(self, *, without_payloads: bool = False) -> AsyncGenerator[pb.DeadMessage, None]:
        """Yields the dead messages in the order they died, page by page. Raises QueueNotFound."""
        page_token = ""
        while True:
            request = pb.ListDeadRequest(
                queue=self.name, page_size=_PAGE_SIZE, page_token=page_token, without_payloads=without_payloads
            )
            page: pb.ListDeadResponse = await self._connection.call(self._connection.admin.ListDead, request)
            for message in page.messages:
                yield message
            page_token = page.next_page_token
            if not page_token:
                return

    async def redrive(
        self, message_ids: Sequence[str] | None = None, *, to_queue: str = "", rate: float = 0.0
    ) -> AsyncGenerator[pb.RedriveResponse, None]:
        """Puts dead messages back at the tail of a line, as if never delivered, and yields how far it is.

        message_ids: which; None is all that is dead now, and an empty sequence is none.
        to_queue: another queue to put them into; default this one.
        rate: at most so many per second; 0 is no limit.

        Waits while the target is full, or foreign clients hold roles of it that are needed, for as long as that takes.
        Leaving the loop ends the redrive after the step under way (`contextlib.aclosing` makes that happen at once);
        what was put back stays, and a second redrive goes on with the rest. The last answer names what was not dead as
        `not_found_ids`. Raises QueueNotFound, QueueClosed, QueueDeleted.
        """
        if message_ids is not None and not message_ids:
            return
        request = pb.RedriveRequest(queue=self.name, message_ids=message_ids, to_queue=to_queue, rate=rate)
        async with aclosing(self._connection.stream(self._connection.admin.Redrive, request)) as answers:
            async for progress in answers:
                yield progress
