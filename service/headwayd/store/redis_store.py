"""The store on Redis or Valkey: every method is one script, every reply one value of the domain.

Nothing is kept here but connections and the offset between the store's clock and this process's.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from headwayd.domain.errors import (
    FieldInvalid,
    QueueDeleted,
    RoleInUse,
    StoreUnavailable,
    Violation,
)
from headwayd.domain.limits import DAY_MS, MAX_DELAY_MS
from headwayd.domain.model import (
    DelayOrder,
    GetOrder,
    NewMessage,
    OnDuplicate,
    Peeked,
    Policy,
    Purged,
    Queue,
    Repaired,
    Role,
    Settlement,
    StoreFacts,
)
from headwayd.domain.names import refusal_of
from headwayd.engine.ports import DueListener, GetStep, HintListener, PutStep, RoleStep, Wait
from headwayd.store import keys, replies, tokens
from headwayd.store.connections import ConnectionSource
from headwayd.store.facts import ask_facts
from headwayd.store.hints import Hints
from headwayd.store.link import Argument, Link
from headwayd.store.replies import text
from headwayd.store.scripts import Script, all_scripts, policy_pairs
from headwayd.store.status import Status

_PURGE_STEP = 1_000
_SCAN_COUNT = 1_000
_MANY_AT_ONCE = 200


_TOO_FAR = f"is more than {MAX_DELAY_MS // DAY_MS} days ahead"


def _invalid(field: str, description: str) -> FieldInvalid:
    return FieldInvalid(f"{field} {description}", metadata={"field": field}, violations=[Violation(field, description)])


class RedisStore:
    """Fulfils `engine.ports.Store`. `process` names this process in role keys and channels; `scripts` replaces the
    scripts (by a test's, with another clock)."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str,
        process: str,
        embedded: bool,
        call_timeout: timedelta,
        scripts: Mapping[str, Script] | None = None,
    ) -> None:
        self._prefix = prefix
        self._process = process
        self._is_embedded = embedded
        self._timeout_s = call_timeout.total_seconds()
        self._scripts = all_scripts() if scripts is None else scripts
        source = ConnectionSource(url, call_timeout_s=self._timeout_s)
        # Channels are one space for all databases of a server.
        self._channels = f"{prefix}:{source.database}" if source.database else prefix
        self._link = Link(source, call_timeout_s=self._timeout_s)
        self._hints = Hints(
            source, prefix=prefix, channels=self._channels, process=process, call_timeout_s=self._timeout_s
        )
        self._facts = StoreFacts(is_embedded=embedded, prefix=prefix)
        self._clock_ahead_ms: float | None = None
        self._due_listener: DueListener = lambda _queue, _delay_s: None

    @property
    def facts(self) -> StoreFacts:
        """What was last found out about the store."""
        return self._facts

    async def start(self) -> None:
        """Connects and finds out what the store is. Raises StoreUnavailable; then `start` may be called again, and all
        calls work as soon as the store does."""
        self._hints.on_due = self._on_announced_due
        if not self._hints.is_started:
            await self._hints.start(wait_s=self._timeout_s)
        await self.probe(budget_s=self._timeout_s)

    async def close(self) -> None:
        """Drops all connections."""
        await self._hints.close()
        await self._link.close()

    async def probe(self, *, budget_s: float) -> StoreFacts:
        """Asks the store anew what it is. Raises StoreUnavailable; `facts` then says that it is not reachable."""
        try:
            async with asyncio.timeout(budget_s):
                self._facts = await ask_facts(self._link, is_embedded=self._is_embedded, prefix=self._prefix)
        except (StoreUnavailable, TimeoutError) as error:
            self._facts = replace(self._facts, is_reachable=False)
            if isinstance(error, TimeoutError):
                raise StoreUnavailable("the store did not answer in time", metadata={"cause": "SILENT"}) from None
            raise
        return self._facts

    def on_hint(self, listener: HintListener) -> None:
        """Who is told that something may have changed for those who wait."""
        self._hints.on_hint = listener

    def on_due(self, listener: DueListener) -> None:
        """Who is told when time alone will next change a queue: its name and the seconds until then."""
        self._due_listener = listener

    def on_reconnect(self, listener: Callable[[], None]) -> None:
        """Who is told that hints may have been missed."""
        self._hints.on_reconnect = listener

    async def arm(self, queue: str, *, with_leases: bool) -> None:
        """Asks to be told of the next change of this queue; with the leases, of a slot that comes free, too."""
        await self._hints.arm(queue, with_leases=with_leases)

    # -- time ---------------------------------------------------------------------------------------------------------

    def _learn_time(self, now_ms: int) -> None:
        self._clock_ahead_ms = now_ms - asyncio.get_running_loop().time() * 1000

    def _on_announced_due(self, queue: str, due_ms: int) -> None:
        if self._clock_ahead_ms is None:
            self._due_listener(queue, 0.0)
            return
        now_ms = asyncio.get_running_loop().time() * 1000 + self._clock_ahead_ms
        self._due_listener(queue, max(0.0, due_ms - now_ms) / 1000)

    def _note_due(self, queue: str, now: Any, due: Any) -> None:
        now_ms, due_ms = int(now), int(due)
        self._learn_time(now_ms)
        if due_ms:
            self._due_listener(queue, max(0, due_ms - now_ms) / 1000)

    # -- calling ------------------------------------------------------------------------------------------------------

    async def _ask(self, script: str, queue: str, *arguments: Argument, budget_s: float) -> list[Any]:
        base = keys.base_key(self._prefix, queue)
        return await self._link.call(self._scripts[script], base, self._channels, arguments, budget_s=budget_s)

    async def _ask_queue(self, script: str, queue: str, *arguments: Argument, budget_s: float) -> Queue:
        return self._queue(queue, await self._ask(script, queue, *arguments, budget_s=budget_s))

    def _queue(self, queue: str, reply: list[Any]) -> Queue:
        if (error := replies.missing(reply[0], queue)) is not None:
            raise error
        return replies.queue_of(queue, reply[1:], self._facts.durability)

    # -- queues -------------------------------------------------------------------------------------------------------

    async def create(self, queue: str, policy: Policy, *, budget_s: float) -> tuple[Queue, bool]:
        """The queue that stands now, and whether this call made it. Raises QueueDeleted while a deletion is held up."""
        reply = await self._ask("create", queue, *policy_pairs(policy), budget_s=budget_s)
        if text(reply[0]) == Status.QUEUE_DELETED:
            raise QueueDeleted(
                f"queue {queue!r} is being deleted, held up by the {text(reply[1])} {text(reply[2])}",
                metadata={"queue": queue},
            )
        return self._queue(queue, reply), text(reply[0]) == Status.OK

    async def describe(self, queue: str, *, budget_s: float) -> Queue:
        """The queue as of one instant."""
        return await self._ask_queue("describe", queue, budget_s=budget_s)

    async def describe_many(self, queues: Sequence[str], *, budget_s: float) -> Sequence[Queue]:
        """Those of the queues that stand, each as of its own instant."""
        found: list[Queue] = []
        for start in range(0, len(queues), _MANY_AT_ONCE):
            part = queues[start : start + _MANY_AT_ONCE]
            answers = await asyncio.gather(
                *(self._ask("describe", queue, budget_s=budget_s) for queue in part), return_exceptions=True
            )
            for queue, reply in zip(part, answers, strict=True):
                if isinstance(reply, BaseException):
                    raise reply
                if replies.missing(reply[0], queue) is None:
                    found.append(self._queue(queue, reply))
        return found

    async def names(self, *, budget_s: float) -> Sequence[str]:
        """The names of all queues, foreign ones too, in byte order. Cost grows with the number of keys in the store."""
        return await self._scan(keys.bound_pattern(self._prefix), keys.PRESSURE["bound"], budget_s)

    async def names_with_own_keys(self, *, budget_s: float) -> Sequence[str]:
        """The names of all queues that Headway has worked on."""
        return await self._scan(keys.meta_pattern(self._prefix), keys.OWN["meta"], budget_s)

    async def _scan(self, pattern: str, suffix: str, budget_s: float) -> list[str]:
        found: set[str] = set()
        cursor: bytes | int = 0
        try:
            async with asyncio.timeout(budget_s):
                while True:
                    cursor, batch = await self._link.command("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT)
                    for key in batch:
                        name = keys.queue_of_key(self._prefix, key, suffix)
                        if name is not None and refusal_of(name) is None:
                            found.add(name)
                    if int(cursor) == 0:
                        return sorted(found, key=str.encode)
        except TimeoutError:
            raise StoreUnavailable("the store did not answer in time", metadata={"cause": "SILENT"}) from None

    async def update(self, queue: str, policy: Policy, fields: Sequence[str], *, budget_s: float) -> Queue:
        """The queue after the named fields took the policy's values."""
        return await self._ask_queue("update", queue, *policy_pairs(policy, tuple(fields)), budget_s=budget_s)

    async def set_paused(self, queue: str, is_paused: bool, *, budget_s: float) -> Queue:
        """The queue after it was paused or resumed."""
        return await self._ask_queue("pause", queue, "1" if is_paused else "0", budget_s=budget_s)

    async def close_queue(self, queue: str, *, budget_s: float) -> Queue | RoleStep:
        """The closed queue, or who holds the producer role. Raises QueueClosed if it was closed before."""
        reply = await self._ask("close", queue, self._process, budget_s=budget_s)
        if text(reply[0]) == Status.ROLE_IN_USE:
            return RoleStep(False, text(reply[1]), text(reply[2]))
        return self._queue(queue, reply)

    async def delete(self, queue: str, *, budget_s: float) -> RoleStep:
        """Begins or resumes a deletion; not done while a foreign client holds a role."""
        reply = await self._ask("delete", queue, budget_s=budget_s)
        if text(reply[0]) == Status.ROLE_IN_USE:
            return RoleStep(False, text(reply[1]), text(reply[2]))
        if (error := replies.missing(reply[0], queue)) is not None:
            raise error
        return RoleStep(True)

    # -- messages -----------------------------------------------------------------------------------------------------

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
        budget_s: float,
    ) -> PutStep:
        """Puts as many of the messages, from the first on, as there is room for. Raises QueueClosed; FieldInvalid and
        DuplicateMessage for a batch that is all or nothing."""
        arguments: list[Argument] = [
            producer or self._process,
            waiter,
            line_ticket,
            str(on_duplicate),
            "1" if all_or_nothing else "0",
            len(messages),
        ]
        for message in messages:
            when = f"d{message.delay_ms}" if message.delay_ms else ""
            if message.not_before_at_ms:
                when = f"a{message.not_before_at_ms}"
            arguments += (message.id, when, message.headers, message.payload)
        reply = await self._ask("put", queue, *arguments, budget_s=budget_s)
        status = text(reply[0])
        if (error := replies.missing(reply[0], queue)) is not None:
            raise error
        if status == Status.NEVER_FITS:
            raise _invalid("messages", "more than the queue's bound, so they can never be accepted together")
        if status == Status.TOO_FAR:
            raise _invalid(f"messages[{int(reply[1]) - 1}].not_before", _TOO_FAR)
        if status == Status.DUPLICATE_MESSAGE:
            raise replies.duplicate(queue, messages[int(reply[1]) - 1].id)
        self._note_due(queue, reply[1], reply[9])
        return PutStep(
            outcomes=replies.put_outcomes(queue, reply, [message.id for message in messages]),
            wait=Wait(text(reply[3]) or Wait.NOTHING.value),
            line_ticket=int(reply[5]),
            holder=text(reply[4]),
            bound=int(reply[10]),
        )

    async def leave_line(self, queue: str, waiter: str, *, budget_s: float) -> None:
        """A producer gives up its place in line."""
        await self._ask("leave", queue, waiter, budget_s=budget_s)

    async def get(self, order: GetOrder, *, budget_s: float) -> GetStep:
        """Settles, then leases what can be leased now. Raises QueueDrained unless something was settled."""
        random = secrets.token_bytes(tokens.RANDOM_BYTES)
        reply = await self._ask(
            "get",
            order.queue,
            order.consumer or self._process,
            order.max_messages,
            order.lease_ms,
            random,
            order.max_bytes,
            "1" if order.only_if_settled else "0",
            *self._leases(order.ack),
            budget_s=budget_s,
        )
        error = replies.missing(reply[0], order.queue)
        if error is not None and (text(reply[0]) != Status.QUEUE_DRAINED or not order.ack):
            raise error
        self._note_due(order.queue, reply[1], reply[6])
        first = 8 + 2 * int(reply[7])
        settled = [
            replies.settlement(lease, reply[8 + 2 * index], reply[9 + 2 * index])
            for index, lease in enumerate(order.ack)
        ]
        return GetStep(
            deliveries=replies.deliveries(reply, first, random),
            settled=settled,
            wait=Wait(text(reply[3]) or Wait.NOTHING.value),
            holder=text(reply[4]),
        )

    @staticmethod
    def _leases(leases: Sequence[str]) -> list[Argument]:
        arguments: list[Argument] = [len(leases)]
        for lease in leases:
            name = tokens.decode(lease)
            arguments += (name.generation, name.ticket, name.nonce)
        return arguments

    async def ack(self, queue: str, leases: Sequence[str], *, budget_s: float) -> Sequence[Settlement]:
        """Settles for good. The leases of a queue that is no more are GONE."""
        reply = await self._ask("ack", queue, *self._leases(leases), budget_s=budget_s)
        if replies.missing(reply[0], queue) is not None:
            return replies.all_gone(leases)
        self._note_due(queue, reply[1], reply[2])
        return [replies.settlement(lease, reply[3 + 2 * i], reply[4 + 2 * i]) for i, lease in enumerate(leases)]

    async def delay(self, order: DelayOrder, *, budget_s: float) -> Sequence[Settlement]:
        """Gives leases back. The leases of a queue that is no more are GONE."""
        when = "b"
        if order.delay_ms is not None:
            when = f"d{order.delay_ms}"
        elif order.until_at_ms is not None:
            when = f"a{order.until_at_ms}"
        keeps = "1" if order.keep_attempt else "0"
        reply = await self._ask(
            "delay", order.queue, when, keeps, order.reason, *self._leases(order.leases), budget_s=budget_s
        )
        if replies.missing(reply[0], order.queue) is not None:
            return replies.all_gone(order.leases)
        if text(reply[0]) == Status.TOO_FAR:
            raise _invalid("until", _TOO_FAR)
        self._note_due(order.queue, reply[1], reply[2])
        return [replies.settlement(lease, *reply[3 + 3 * i : 6 + 3 * i]) for i, lease in enumerate(order.leases)]

    async def release(self, queue: str, leases: Sequence[str], *, budget_s: float) -> Sequence[Settlement]:
        """Gives leases back at no attempt's cost: nobody worked on them."""
        order = DelayOrder(queue=queue, leases=leases, delay_ms=0, keep_attempt=True)
        return await self.delay(order, budget_s=budget_s)

    async def extend(
        self, queue: str, leases: Sequence[str], lease_ms: int, *, budget_s: float
    ) -> Sequence[Settlement]:
        """Lets leases run from now on. The leases of a queue that is no more are GONE."""
        reply = await self._ask("extend", queue, lease_ms, *self._leases(leases), budget_s=budget_s)
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

    # -- operators ----------------------------------------------------------------------------------------------------

    async def purge(self, queue: str, *, with_dead: bool, budget_s: float) -> Purged | RoleStep:
        """Empties the queue in steps of bounded size, each within the budget; or who holds the consumer role."""
        removed = {"waiting": 0, "delayed": 0, "dead": 0}
        before = (await self.describe(queue, budget_s=budget_s)).counts
        there = {"waiting": before.length, "delayed": before.delayed, "dead": before.dead if with_dead else 0}
        for kind, most in there.items():
            while removed[kind] < most:
                reply = await self._ask("purge", queue, kind, _PURGE_STEP, budget_s=budget_s)
                if text(reply[0]) == Status.ROLE_IN_USE:
                    return RoleStep(False, text(reply[1]), text(reply[2]))
                if (error := replies.missing(reply[0], queue)) is not None:
                    raise error
                if int(reply[1]) == 0:
                    break
                removed[kind] += int(reply[1])
        return Purged(**removed)

    async def repair(self, queue: str, confirm_holder: str, *, budget_s: float) -> Repaired:
        """What a dead foreign client left behind; mended if its name is confirmed. Raises RoleInUse if the name is
        not the holder's."""
        reply = await self._ask("repair", queue, confirm_holder, budget_s=budget_s)
        if (error := replies.missing(reply[0], queue)) is not None:
            raise error
        producer = Role(text(reply[2]) == "1", text(reply[3]))
        consumer = Role(text(reply[4]) == "1", text(reply[5]))
        if text(reply[0]) == Status.ROLE_IN_USE:
            role, holder = ("producer", producer.holder) if producer.is_taken else ("consumer", consumer.holder)
            raise RoleInUse.of(queue, role=role, holder=holder)
        count = int(reply[6])
        report = reply[7 + count :]
        return Repaired(
            findings=[text(finding) for finding in reply[7 : 7 + count]],
            is_repaired=text(reply[1]) == "1",
            producer=producer,
            consumer=consumer,
            queue=replies.queue_of(queue, report, self._facts.durability) if report else None,
        )

    # -- time passing -------------------------------------------------------------------------------------------------

    async def sweep(self, queue: str, *, budget_s: float) -> bool:
        """Does what is due, in one bounded step. True if more is due already; the due listener hears when to come
        again. A queue that is no more has nothing due."""
        reply = await self._ask("sweep", queue, budget_s=budget_s)
        if replies.missing(reply[0], queue) is not None:
            return False
        self._note_due(queue, reply[1], reply[2])
        return text(reply[3]) == "1"
