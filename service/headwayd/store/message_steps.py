"""What is done with messages: one script each, every reply a value of the domain."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from headwayd.domain.bare import BareMessages
from headwayd.domain.errors import (
    FieldInvalid,
    HeadwayError,
    NotThere,
    OutcomeUnknown,
    QueueDeleted,
    QueueDrained,
    RoleInUse,
    Unavailable,
    Violation,
)
from headwayd.domain.leases import all_leases
from headwayd.domain.limits import in_words
from headwayd.domain.model import (
    NO_ASKER,
    DelayOrder,
    GetOrder,
    NewMessage,
    OnDuplicate,
    Peeked,
    Settled,
    Settlement,
    WithdrawOutcome,
    refused,
)
from headwayd.domain.places import Progress
from headwayd.domain.standing import Waiter
from headwayd.engine.ports import GetAsk, GetStep, PutStep, Wait
from headwayd.store import replies, stand_replies, tokens
from headwayd.store.asking import DEAR, Asking
from headwayd.store.packing import Argument, Run
from headwayd.store.replies import text
from headwayd.store.status import Status

_NOBODY = Waiter(name="")


def _invalid(field: str, description: str) -> FieldInvalid:
    return FieldInvalid(f"{field} {description}", metadata={"field": field}, violations=[Violation(field, description)])


@contextmanager
def _behind(done: Sequence[object]) -> Iterator[None]:
    """A step of a call of several: if one before it did something, it is not said that nothing happened."""
    try:
        yield
    except Unavailable as error:
        if not done:
            raise
        raise OutcomeUnknown(
            "some of it was done before the store failed or time was up", metadata=error.metadata
        ) from error


class MessageSteps(Asking):
    """The message part of `engine.ports.Store`."""

    def _too_far(self, field: str) -> FieldInvalid:
        return _invalid(field, f"is more than {in_words(self._max_delay_ms)} ahead")

    async def put(
        self,
        queue: str,
        messages: Sequence[NewMessage],
        *,
        producer: str,
        waiter: str,
        line_ticket: int,
        on_duplicate: OnDuplicate,
        all_or_nothing: bool,
        generation: str = "",
        budget_s: float,
    ) -> PutStep:
        """Puts as many of the messages, from the first on, as there is room for, if the queue still has this
        `generation` ("": whichever it has); in several steps where those that wait under known ids are far into a long
        line. Raises QueueClosed; FieldInvalid and DuplicateMessage for a batch that is all or
        nothing."""
        heading: tuple[Argument, ...] = (
            producer or self._process,
            waiter,
            line_ticket,
            str(on_duplicate),
            "1" if all_or_nothing else "0",
            "1" if producer else "0",
            generation,
        )
        until = asyncio.get_running_loop().time() + budget_s
        step = await self._put_step(queue, messages, heading, budget_s=budget_s)
        if step.wait is not Wait.MORE:
            return step
        return await self._put_rest(queue, messages, heading, step, until=until)

    async def _put_rest(
        self, queue: str, messages: Sequence[NewMessage], heading: Sequence[Argument], step: PutStep, *, until: float
    ) -> PutStep:
        """Goes on behind the first step. Whatever ends it is what befell those that were left, and then the step says
        MORE: who had a place in line may have it yet."""
        loop, outcomes = asyncio.get_running_loop(), list(step.outcomes)
        while step.wait is Wait.MORE:
            rest = messages[len(outcomes) :]
            try:
                step = await self._put_step(queue, rest, (*heading[:-1], step.generation), budget_s=until - loop.time())
            except NotThere:
                raise QueueDeleted.of(queue) from None
            except HeadwayError as error:
                return step._replace(outcomes=[*outcomes, *refused(rest, error)])
            outcomes += step.outcomes
        return step._replace(outcomes=outcomes)

    async def _put_step(
        self, queue: str, messages: Sequence[NewMessage], heading: Sequence[Argument], *, budget_s: float
    ) -> PutStep:
        told = self._messages(messages)
        gate = None
        line_ticket = heading[2]
        if not line_ticket and type(run := told[-1]) is Run:  # whoever stood in line finds the gate shut
            gate = self._gates.of(queue, messages, run, *heading)
        reply = await self._ask("put", queue, *heading, *told, budget_s=budget_s, items=len(messages), gate=gate)
        if gate is not None:
            self._gates.remember(queue, gate)
        status = text(reply[0])
        if (error := replies.missing(reply[0], queue)) is not None:
            raise error
        if status == Status.NEVER_FITS:
            raise _invalid("messages", "more than the queue's bound, so they can never be accepted together")
        if status == Status.TOO_FAR:
            raise self._too_far(f"messages[{int(reply[1]) - 1}].not_before")
        if status == Status.DUPLICATE_MESSAGE:
            raise replies.duplicate(queue, messages[int(reply[1]) - 1].id)
        self._note_due(queue, reply[1], reply[9])
        return PutStep(
            outcomes=replies.put_outcomes(queue, reply, messages),
            wait=Wait(text(reply[3]) or Wait.NOTHING.value),
            line_ticket=int(reply[5]),
            holder=text(reply[4]),
            bound=int(reply[10]),
            generation=text(reply[2]),
        )

    @staticmethod
    def _messages(messages: Sequence[NewMessage]) -> list[Argument | Run]:
        if type(messages) is BareMessages:
            return [f"p{len(messages)}", Run(messages.payloads, messages.size)]
        if all(message.is_bare for message in messages):
            return [f"p{len(messages)}", *[message.payload for message in messages]]
        arguments: list[Argument | Run] = [len(messages)]
        for message in messages:
            when = f"d{message.delay_ms}" if message.delay_ms else ""
            if message.not_before_at_ms:
                when = f"a{message.not_before_at_ms}"
            arguments += (message.id, when, message.time_to_live_ms, message.headers, message.payload)
        return arguments

    async def leave_line(self, queue: str, waiter: str, *, budget_s: float) -> None:
        """A producer gives up its place in line."""
        await self._ask("leave", queue, waiter, "producers", budget_s=budget_s)

    async def get(self, order: GetOrder, *, budget_s: float, waiter: Waiter | None = None) -> GetStep:
        """Settles, then leases what can be leased now; a waiter stands in line if that is nothing. Raises QueueDrained
        unless something was settled; PollTooSoon and PlaceLost for the place it comes back to."""
        random = secrets.token_bytes(tokens.RANDOM_BYTES)
        if order.asker != NO_ASKER:  # its own leases tell that it asked first (lua/include/attempts.lua)
            random = order.asker + random[len(order.asker) :]
        reply = await self._get(order, waiter or _NOBODY, (), order.ack, random, budget_s=budget_s)
        error = replies.missing(reply[0], order.queue) or stand_replies.not_standing(reply, order.queue)
        if error is not None and (text(reply[0]) != Status.QUEUE_DRAINED or not order.ack):
            raise error
        self._note_due(order.queue, reply[1], reply[6])
        return stand_replies.get_step(reply, order.ack)

    async def get_together(self, asks: Sequence[GetAsk], *, budget_s: float) -> Sequence[GetStep | QueueDrained]:
        """The same for several who ask of one queue as one consumer for leases of one length, and wait, if they do, in
        one of its lives; there is no attempt id and no place among them, and no stream that owns what it gets. Either
        none has a number in line, or all have, and are in the order of these. Who is before gets all that it asks for
        first, but nothing that another has earned by its `ack`. None can guess another's leases."""
        first, *others = asks
        acks = all_leases([ask.order.ack for ask in asks])
        randoms = secrets.token_bytes(tokens.RANDOM_BYTES * len(asks))
        reply = await self._get(first.order, first.waiter or _NOBODY, others, acks, randoms, budget_s=budget_s)
        queue = first.order.queue
        error = replies.missing(reply[0], queue)
        if error is not None and not isinstance(error, QueueDrained):
            raise error
        self._note_due(queue, reply[1], reply[6])
        steps = stand_replies.get_steps(reply, [ask.order for ask in asks], randoms)
        if error is None:
            return steps
        return [step if step.settled else error for step in steps]

    async def _get(
        self,
        order: GetOrder,
        who: Waiter,
        others: Sequence[GetAsk],
        acks: Sequence[str],
        randoms: bytes,
        *,
        budget_s: float,
    ) -> Sequence[Any]:
        owning = "" if not who.owns_leases else "2" if who.keeps_standing else "1"
        behind: list[Argument] = []
        for other, waiter in others:
            behind += (waiter.name, waiter.number) if waiter else ("", 0)
            behind += (other.max_messages, len(other.ack))
        return await self._ask(
            "get",
            order.queue,
            order.consumer or self._process,
            order.max_messages if order.room is None else f"{order.max_messages} {order.room}",
            order.lease_ms,
            randoms,
            -order.max_bytes if order.must_fit else order.max_bytes,
            order.claim,
            who.name,
            who.number,
            who.place,
            owning,
            who.generation,
            len(others),
            *behind,
            *self._leases(acks),
            budget_s=budget_s,
            items=order.max_messages + sum(other.order.max_messages for other in others) + len(acks),
        )

    @staticmethod
    def _leases(leases: Sequence[str]) -> list[Argument]:
        return [len(leases), *tokens.decode_all(leases)]

    async def withdraw(
        self, queue: str, message_ids: Sequence[str], *, generation: str = "", budget_s: float
    ) -> Sequence[WithdrawOutcome]:
        """Cancels what waits or is delayed, in this life of the queue ("": whichever it is); one outcome per id. In
        several steps where these are far into a long line. Raises QueueDeleted if that life is over."""
        loop = asyncio.get_running_loop()
        until = loop.time() + budget_s
        outcomes: list[WithdrawOutcome] = []
        while True:
            rest = message_ids[len(outcomes) :]
            with _behind(outcomes):
                reply = await self._ask(
                    "withdraw", queue, generation, *rest, budget_s=until - loop.time(), items=DEAR * len(rest)
                )
            if (error := replies.missing(reply[0], queue)) is not None:
                raise error
            self._note_due(queue, reply[1], reply[2])
            generation = text(reply[3])
            for name, status, mark in zip(rest, reply[4::2], reply[5::2], strict=False):
                outcomes.append(replies.withdrawal(queue, name, status, mark))
            if len(outcomes) >= len(message_ids):
                return outcomes

    async def ack(
        self, queue: str, leases: Sequence[str], *, budget_s: float, result: bytes = b""
    ) -> Sequence[Settlement]:
        """Settles for good. The leases of a queue that is no more are GONE."""
        reply = await self._ask("ack", queue, result, *self._leases(leases), budget_s=budget_s, items=len(leases))
        if replies.missing(reply[0], queue) is not None:
            return replies.all_gone(leases)
        self._note_due(queue, reply[1], reply[2])
        return replies.acked(leases, reply, 3)[0]

    async def delay(self, order: DelayOrder, *, budget_s: float) -> Sequence[Settlement]:
        """Gives leases back, and postpones by id. What belongs to a queue that is no more is GONE. Raises RoleInUse if
        something is to be postponed by id and foreign clients hold both roles."""
        return await self._delay(order, "1" if order.keep_attempt else "0", budget_s=budget_s)

    async def _delay(self, order: DelayOrder, keeps: str | bytes, *, budget_s: float) -> Sequence[Settlement]:
        """In several steps where what is named by id is far into a long line. What is left when foreign clients come to
        hold both roles is STALE: one of them may just have taken it."""
        loop = asyncio.get_running_loop()
        until, rest, generation = loop.time() + budget_s, order, ""
        settled: list[Settlement] = []
        while True:
            try:
                with _behind(settled):
                    step, generation = await self._delay_step(rest, keeps, generation, budget_s=until - loop.time())
            except RoleInUse:
                if not settled:
                    raise
                step = [Settlement("", Settled.STALE, id=name) for name in rest.message_ids]
            settled += step
            left = len(order.leases) + len(order.message_ids) - len(settled)
            if left <= 0:
                return settled
            rest = replace(order, leases=(), message_ids=order.message_ids[-left:])

    async def _delay_step(
        self, order: DelayOrder, keeps: str | bytes, generation: str, *, budget_s: float
    ) -> tuple[list[Settlement], str]:
        """What became of all leases, and of the first of the ids; and the generation of the queue."""
        when = "b"
        if order.delay_ms is not None:
            when = f"d{order.delay_ms}"
        elif order.until_at_ms is not None:
            when = f"a{order.until_at_ms}"
        names: list[Argument] = [f"{len(order.message_ids)} {generation}", *order.message_ids]
        leases = self._leases(order.leases)
        items = DEAR * (len(order.leases) + len(order.message_ids))
        told = (when, keeps, order.reason, *names, *leases)
        reply = await self._ask("delay", order.queue, *told, budget_s=budget_s, items=items)
        if text(reply[0]) == Status.ROLE_IN_USE:
            raise RoleInUse.of(order.queue, role=text(reply[1]), holder=text(reply[2]))
        if replies.missing(reply[0], order.queue) is not None:
            return replies.all_gone(order.leases, order.message_ids), generation
        if text(reply[0]) == Status.TOO_FAR:
            raise self._too_far(order.until_field)
        self._note_due(order.queue, reply[1], reply[2])
        subjects = [(lease, "") for lease in order.leases] + [("", name) for name in order.message_ids]
        told_of = zip(subjects, reply[4::3], reply[5::3], reply[6::3], strict=False)
        settled = [
            replies.settlement(lease, status, attempts, at, message_id=name)
            for (lease, name), status, attempts, at in told_of
        ]
        return settled, text(reply[3])

    async def release(
        self,
        queue: str,
        leases: Sequence[str],
        *,
        budget_s: float,
        owned: bool = False,
        owner: str = "",
        claim: bytes = b"",
    ) -> Sequence[Settlement]:
        """Gives leases back at no attempt's cost. Those stay that a repeated Get was given, too, unless with this
        `claim` all who asked for them have gone, or they are `owned`, so that nobody else can have them; then their
        holder does not go on before all others, either. With an `owner` all stay, and all that lapsed may be taken up
        again, but what the stream of this waiter owns now."""
        order = DelayOrder(queue=queue, leases=leases, delay_ms=0)
        return await self._delay(order, "o" + owner if owned else b"u" + claim, budget_s=budget_s)

    def ticket_of(self, lease: str) -> int:
        """Where its message stands among all of its queue; 0 for what is no lease."""
        return tokens.decode(lease).ticket

    async def extend(
        self,
        queue: str,
        leases: Sequence[str],
        lease_ms: int,
        *,
        budget_s: float,
        progress: Progress | None = None,
        owner: str = "",
    ) -> Sequence[Settlement]:
        """Lets leases run from now on. Those that had lapsed, and are taken up again, are owned by the stream of this
        waiter, if one is named, and else by none. The leases of a queue that is no more are GONE."""
        told: tuple[str, str] = ("", "") if progress is None else (repr(progress.fraction), progress.note)
        words = (lease_ms, *told, owner, *self._leases(leases))
        reply = await self._ask("extend", queue, *words, budget_s=budget_s, items=DEAR * len(leases))
        if replies.missing(reply[0], queue) is not None:
            return replies.all_gone(leases)
        self._note_due(queue, reply[1], reply[2])
        results = []
        for i, lease in enumerate(leases):
            status = reply[4 + 2 * i]
            deadline = reply[3] if text(status) == Status.EXTENDED else 0
            results.append(replies.settlement(lease, status, reply[5 + 2 * i], deadline))
        return results

    async def peek(
        self, queue: str, *, from_position: int, max_messages: int, max_bytes: int, budget_s: float
    ) -> Sequence[Peeked]:
        """Waiting messages from a position on."""
        reply = await self._ask("peek", queue, from_position, max_messages, max_bytes, budget_s=budget_s)
        if (error := replies.missing(reply[0], queue)) is not None:
            raise error
        return replies.peeked(reply)
