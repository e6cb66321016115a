"""What is done with the leased and the dead, and with all of a queue at once: looks, moves and checks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from headwayd.domain import names
from headwayd.domain.errors import FieldInvalid, QueueClosed, QueueDeleted, TooLarge, Violation
from headwayd.domain.model import Checked, Counts, DeadPage
from headwayd.domain.namespaces import split
from headwayd.domain.places import LeasedMessage
from headwayd.engine.ports import RedriveBounds, RedriveStep
from headwayd.store import frames, replies
from headwayd.store.asking import DEAR, Asking
from headwayd.store.packing import Argument
from headwayd.store.replies import Corpse, text
from headwayd.store.status import Status

_NO_LIMIT = "+inf"
_ADOPT_BYTES = 4 * 1024 * 1024
_FIRST = RedriveBounds()


# Of a page of the dead: the queue's generation, and the number of the last message before the page.
_PAGE_TOKEN = re.compile("([0-9a-f]+)-([1-9][0-9]{0,15})")


def _no_token(description: str) -> FieldInvalid:
    violations = [Violation("page_token", description)]
    return FieldInvalid(f"page_token {description}", metadata={"field": "page_token"}, violations=violations)


def _is_life(reply: Sequence[Any], generation_at: int, generation: str) -> bool:
    """Whether the queue that a script read is of this generation."""
    return text(reply[0]) == Status.OK and text(reply[generation_at]) == generation


class DeadSteps(Asking):
    """The part of `engine.ports.Store` for the leased, for the dead, and for checks."""

    async def list_leased(self, queue: str, *, max_messages: int, budget_s: float) -> Sequence[LeasedMessage]:
        """Messages that are being worked on, those first whose lease ends first."""
        reply = await self._ask("list_leased", queue, max_messages, budget_s=budget_s)
        if (error := replies.missing(reply[0], queue)) is not None:
            raise error
        return replies.leased_messages(reply)

    async def list_dead(
        self, queue: str, *, page_size: int, page_token: str, max_bytes: int, budget_s: float
    ) -> DeadPage:
        """A page of the dead, in the order they died. A token holds for the life of the queue that it was given for;
        raises FieldInvalid for any other."""
        token = _PAGE_TOKEN.fullmatch(page_token)
        if page_token and token is None:
            raise _no_token("is no token of a page")
        corpses, generation, is_more = await self._corpses(
            queue, after=token[2] if token else "0", most=page_size, max_bytes=max_bytes, budget_s=budget_s
        )
        if token and token[1] != text(generation):
            raise _no_token("was given for another queue, or an earlier one of this name")
        next_token = f"{text(generation)}-{corpses[-1].number}" if is_more else ""
        return DeadPage([replies.dead_message(corpse) for corpse in corpses], next_token)

    async def _corpses(
        self,
        queue: str,
        *,
        after: str,
        most: int,
        max_bytes: int,
        budget_s: float,
        last: str = _NO_LIMIT,
        names: Sequence[str] = (),
        generation: str = "",
    ) -> tuple[list[Corpse], str, bool]:
        """Rows, the queue's generation, and whether there are more. Raises QueueDeleted if a generation is given, and
        that queue is no more."""
        reply = await self._ask("list_dead", queue, after, most, max_bytes, last, *names, budget_s=budget_s)
        if generation and not _is_life(reply, 1, generation):
            raise QueueDeleted.of(queue)
        if (error := replies.missing(reply[0], queue)) is not None:
            raise error
        return replies.corpses(reply), text(reply[1]), text(reply[2]) == "1"

    async def redrive(
        self,
        queue: str,
        to_queue: str,
        *,
        message_ids: Sequence[str],
        bounds: RedriveBounds = _FIRST,
        most: int,
        budget_s: float,
    ) -> RedriveStep:
        """Puts up to `most` of the dead back: those with these ids, or all within the bounds. Raises QueueClosed for
        the target, QueueDeleted if either queue of the step before is no more."""
        if to_queue in ("", queue):
            return await self._redrive_here(queue, message_ids, bounds, most=most, budget_s=budget_s)
        return await self._redrive_there(queue, to_queue, message_ids, bounds, most=most, budget_s=budget_s)

    async def _redrive_here(
        self, queue: str, message_ids: Sequence[str], bounds: RedriveBounds, *, most: int, budget_s: float
    ) -> RedriveStep:
        items = DEAR * (len(message_ids) or most)
        reply = await self._ask(
            "redrive", queue, bounds.last, most, bounds.generation, *message_ids, budget_s=budget_s, items=items
        )
        if (error := replies.missing(reply[0], queue)) is not None:
            raise error
        self._note_due(queue, reply[1], reply[2])
        return RedriveStep(
            moved=int(reply[3]),
            done=int(reply[4]),
            is_full=int(reply[5]) == 1,
            remaining=int(reply[6]),
            bounds=RedriveBounds(int(reply[7]), text(reply[8])),
            not_found=[text(name) for name in reply[9:]],
        )

    async def _redrive_there(
        self,
        queue: str,
        to_queue: str,
        message_ids: Sequence[str],
        bounds: RedriveBounds,
        *,
        most: int,
        budget_s: float,
    ) -> RedriveStep:
        """Three steps: look, put there, remove here. Broken off between the last two, a message is in both queues; the
        target knows its id, so doing it again only removes it here."""
        if self._servers.is_cluster:  # asking would blame the `queue`
            names.accept(split(to_queue)[1], field="to_queue", is_cluster=True)
        last, generation, to_generation = bounds
        if not last and not message_ids:
            last, generation = await self._last_number(queue, budget_s)
        corpses, generation, is_more = await self._corpses(
            queue,
            after="0",
            most=most,
            max_bytes=_ADOPT_BYTES,
            budget_s=budget_s,
            last=_NO_LIMIT if message_ids else str(last),
            names=message_ids,
            generation=generation,
        )
        found = [corpse for corpse in corpses if corpse.number]
        arguments: list[Argument] = [to_generation, len(found)]
        for corpse in found:
            name = frames.read(corpse.element).id or corpse.made_id
            arguments += (name, corpse.replays + 1, corpse.put_at_ms, corpse.error, corpse.element)
        reply = await self._ask("adopt", to_queue, *arguments, budget_s=budget_s, items=DEAR * len(found))
        if text(reply[0]) == Status.QUEUE_CLOSED:
            raise QueueClosed(f"queue {to_queue!r} is closed", metadata={"queue": to_queue})
        if (error := replies.missing(reply[0], to_queue)) is not None:
            raise error
        self._note_due(to_queue, reply[1], reply[2])
        safe, is_full = int(reply[3]), int(reply[5]) == 1
        if safe:
            rows: list[Argument] = [
                value for corpse in found[:safe] for value in (corpse.reference, str(corpse.number))
            ]
            await self._ask("drop_dead", queue, generation, *rows, budget_s=budget_s, items=DEAR * safe)
        done, left, missing = self._dealt_with(corpses, message_ids, safe)
        if not message_ids:
            left = await self._left(queue, last, generation, budget_s) if is_more else len(found) - safe
        bounds = RedriveBounds(last, generation, text(reply[6]))
        return RedriveStep(moved=safe, done=done, is_full=is_full, remaining=left, bounds=bounds, not_found=missing)

    @staticmethod
    def _dealt_with(corpses: Sequence[Corpse], message_ids: Sequence[str], safe: int) -> tuple[int, int, list[str]]:
        """How many of the ids are dealt with, from the first on, and those among them that are not dead."""
        done, missing = 0, []
        for corpse, name in zip(corpses, message_ids, strict=False):
            if corpse.number:
                if not safe:
                    break
                safe -= 1
            else:
                missing.append(name)
            done += 1
        return done, 0, missing

    async def _last_number(self, queue: str, budget_s: float) -> tuple[int, str]:
        reply = await self._ask("count_dead", queue, _NO_LIMIT, budget_s=budget_s)
        if (error := replies.missing(reply[0], queue)) is not None:
            raise error
        return int(reply[2]), text(reply[3])

    async def _left(self, queue: str, last: int, generation: str, budget_s: float) -> int:
        """At least one where there was more, and the queue is no more: the next step says why that does not move."""
        reply = await self._ask("count_dead", queue, last, budget_s=budget_s)
        return int(reply[1]) if _is_life(reply, 3, generation) else 1

    async def check(self, queue: str, *, max_entries: int, budget_s: float) -> Checked:
        """Whether everything kept of a queue fits together, read in one step."""
        reply = await self._ask("check", queue, max_entries, budget_s=budget_s)
        if (error := replies.missing(reply[0], queue)) is not None:
            raise error
        entries, count = int(reply[1]), int(reply[2])
        if text(reply[0]) == Status.TOO_LARGE:
            raise TooLarge(
                f"queue {queue!r} has {entries} entries, at most {max_entries} are looked at",
                metadata={"field": "max_entries", "limit": str(max_entries), "size": str(entries)},
                violations=[Violation("max_entries", f"is below the queue's {entries} entries")],
            )
        findings = [text(finding) for finding in reply[3 : 3 + count]]
        report = reply[3 + count :]  # missing if a key is of the wrong kind
        counts = replies.queue_of(queue, report, self._facts.durability).counts if report else Counts()
        return Checked(findings=findings, entries=entries, counts=counts)
