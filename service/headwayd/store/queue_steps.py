"""What is done with whole queues: one script each, every reply a value of the domain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from headwayd.domain.errors import (
    HeadwayError,
    NewerLayout,
    QueueDeleted,
    RoleInUse,
    StoreUnavailable,
)
from headwayd.domain.model import (
    Policy,
    Purged,
    Queue,
    Repaired,
    Role,
)
from headwayd.domain.names import refusal_of
from headwayd.domain.namespaces import DEFAULT, split
from headwayd.engine.ports import OwnNames, RoleStep
from headwayd.store import keys, replies
from headwayd.store.asking import Asking
from headwayd.store.link import Link
from headwayd.store.replies import text
from headwayd.store.scripts import policy_pairs
from headwayd.store.status import Status

_PURGE_STEP = 1_000
_SCAN_COUNT = 1_000
_MANY_AT_ONCE = 200


@asynccontextmanager
async def _within(budget_s: float) -> AsyncIterator[None]:
    """Bounds several questions, none of which changes anything, by one budget."""
    try:
        async with asyncio.timeout(budget_s):
            yield
    except TimeoutError:
        raise StoreUnavailable("the store did not answer in time", metadata={"cause": "SILENT"}) from None


async def _keys_on(link: Link, pattern: str) -> AsyncIterator[bytes]:
    cursor: bytes | int = 0
    while True:
        cursor, batch = await link.command("SCAN", cursor, "MATCH", pattern, "COUNT", _SCAN_COUNT)
        for key in batch:
            yield key
        if int(cursor) == 0:
            return


class QueueSteps(Asking):
    """The queue part of `engine.ports.Store`."""

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

    async def describe_many(
        self, queues: Sequence[str], *, only_known: bool = False, budget_s: float
    ) -> Sequence[Queue]:
        """Those of the queues that stand, each as of its own instant. Raises NewerLayout if a newer version keeps one;
        `only_known` leaves such out."""
        found: list[Queue] = []
        async with _within(budget_s):
            for start in range(0, len(queues), _MANY_AT_ONCE):
                part = queues[start : start + _MANY_AT_ONCE]
                answers = await asyncio.gather(
                    *(self._ask("describe", queue, budget_s=budget_s) for queue in part), return_exceptions=True
                )
                for queue, reply in zip(part, answers, strict=True):
                    if only_known and isinstance(reply, NewerLayout):
                        continue
                    if isinstance(reply, BaseException):
                        raise reply
                    if replies.missing(reply[0], queue) is None:
                        found.append(self._queue(queue, reply))
        return found

    async def weigh(self, queues: Sequence[str], *, budget_s: float) -> int:
        """About how many bytes of the store's memory the messages of these queues take."""
        total = 0
        async with _within(budget_s):
            for start in range(0, len(queues), _MANY_AT_ONCE):
                part = queues[start : start + _MANY_AT_ONCE]
                weights = await asyncio.gather(*(self._ask("weigh", queue, budget_s=budget_s) for queue in part))
                total += sum(int(weight[1]) for weight in weights)
        return total

    async def names(self, namespace: str | None = DEFAULT, *, budget_s: float) -> Sequence[str]:
        """The qualified names of a namespace's queues (None: of all), foreign ones too, in byte order. Cost grows with
        the number of keys in the store."""
        names, missing = await self._scan(keys.bound_pattern(self._prefix, namespace), keys.PRESSURE["bound"], budget_s)
        if missing is not None:
            raise missing
        return names

    async def names_with_own_keys(self, *, budget_s: float) -> OwnNames:
        """The qualified names of all queues that Headway has worked on, in whatever namespace. Those of a server that
        does not answer are missing."""
        return await self._scan(keys.meta_pattern(self._prefix), keys.OWN["meta"], budget_s)

    async def _scan(self, pattern: str, suffix: str, budget_s: float) -> OwnNames:
        found: set[str] = set()

        async def scan(link: Link) -> None:
            async with _within(budget_s):
                async for key in _keys_on(link, pattern):
                    name = keys.queue_of_key(self._prefix, key, suffix, is_cluster=self._servers.is_cluster)
                    if name is not None and refusal_of(split(name)[1]) is None:
                        found.add(name)

        missing: HeadwayError | None = None
        for result in await asyncio.gather(*map(scan, self._servers.links), return_exceptions=True):
            if isinstance(result, HeadwayError):
                missing = result
            elif result is not None:
                raise result
        return OwnNames(sorted(found, key=str.encode), missing)

    async def update(
        self,
        queue: str,
        policy: Policy,
        fields: Sequence[str],
        *,
        max_backoff_follows: bool = False,
        budget_s: float,
    ) -> Queue:
        """The queue after the named fields took the policy's values; a max_backoff that follows takes that of
        min_backoff, if that is longer. Raises FieldInvalid if its policy would then contradict itself."""
        follows = "1" if max_backoff_follows else ""
        reply = await self._ask("update", queue, follows, *policy_pairs(policy, tuple(fields)), budget_s=budget_s)
        if text(reply[0]) == Status.CONTRADICTION:
            raise replies.contradiction(map(text, reply[1:]))
        return self._queue(queue, reply)

    async def set_paused(self, queue: str, is_paused: bool, *, budget_s: float) -> Queue:
        """The queue after it was paused or resumed."""
        return await self._ask_queue("pause", queue, "1" if is_paused else "0", budget_s=budget_s)

    async def close_queue(self, queue: str, *, generation: str = "", budget_s: float) -> Queue | RoleStep:
        """The closed queue, or who holds the producer role. Raises QueueClosed if it was closed before, QueueDeleted if
        the queue of the step before is no more."""
        reply = await self._ask("close", queue, self._process, generation, budget_s=budget_s)
        if text(reply[0]) == Status.ROLE_IN_USE:
            return RoleStep(False, *map(text, reply[1:]))
        return self._queue(queue, reply)

    async def delete(self, queue: str, *, generation: str = "", budget_s: float) -> RoleStep:
        """Begins or resumes a deletion; not done while a foreign client holds a role. Done if the queue of the step
        before is no more."""
        reply = await self._ask("delete", queue, generation, budget_s=budget_s)
        if text(reply[0]) == Status.ROLE_IN_USE:
            return RoleStep(False, *map(text, reply[1:]))
        if (error := replies.missing(reply[0], queue)) is not None:
            raise error
        return RoleStep(True)

    # -- operators ----------------------------------------------------------------------------------------------------

    async def purge(self, queue: str, *, with_dead: bool, budget_s: float) -> Purged | RoleStep:
        """Empties the queue in steps of bounded size, each within the budget; or who holds the consumer role. Raises
        QueueDeleted if the queue of the first step is no more."""
        removed = {"waiting": 0, "delayed": 0, "dead": 0}
        generation, there = "", dict[str, int]()
        for kind in removed if with_dead else ("waiting", "delayed"):
            while not there or removed[kind] < there[kind]:
                reply = await self._ask(
                    "purge", queue, kind, _PURGE_STEP, generation, budget_s=budget_s, items=_PURGE_STEP
                )
                if text(reply[0]) == Status.ROLE_IN_USE:
                    return RoleStep(False, text(reply[1]), text(reply[2]))
                if (error := replies.missing(reply[0], queue)) is not None:
                    raise error
                before = dict(zip(removed, map(int, reply[3:]), strict=True))
                generation, there = text(reply[2]), there or before
                if before[kind] == 0:  # else the step may have met only what was withdrawn and stood before them
                    break
                removed[kind] += int(reply[1])
        return Purged(**removed)

    async def repair(self, queue: str, confirm_holder: str, *, budget_s: float) -> Repaired:
        """What a dead foreign client left behind; mended if its name is confirmed. Raises RoleInUse if the name is
        not the holder's."""
        until = asyncio.get_running_loop().time() + budget_s
        holder = await self._holder_told_as(queue, confirm_holder, budget_s=budget_s)
        reply = await self._ask("repair", queue, holder, budget_s=until - asyncio.get_running_loop().time())
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

    async def _holder_told_as(self, queue: str, name: str, *, budget_s: float) -> str | bytes:
        """The name of the holder that is told by this one: they differ where it is not UTF-8."""
        if replies.NOT_TEXT not in name:
            return name
        reply = await self._ask("repair", queue, "", budget_s=budget_s)
        if replies.missing(reply[0], queue) is not None:
            return name
        holders = [reply[at + 1] for at in (2, 4) if text(reply[at]) == "1"]
        return next((holder for holder in holders if text(holder) == name), name)

    # -- time passing -------------------------------------------------------------------------------------------------

    async def sweep(self, queue: str, *, budget_s: float) -> bool:
        """Does what is due, in one bounded step. True if more is due already; the due listener hears when to come
        again. A queue that is no more has nothing due."""
        reply = await self._ask("sweep", queue, budget_s=budget_s)
        if replies.missing(reply[0], queue) is not None:
            return False
        self._note_due(queue, reply[1], reply[2])
        return text(reply[3]) == "1"
