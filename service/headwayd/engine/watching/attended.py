"""Withdraws what an attended watch left behind: nobody is there any more for whom the work would be done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from headwayd.domain.errors import HeadwayError, NotThere
from headwayd.domain.limits import STORE_BUDGET_S
from headwayd.engine.ports import Store

MOST_IDS = 500  # withdrawn in one step
KEEP_TRYING_S = 60.0  # as long as the store gives no answer
_PAUSE_S = 0.25
log = structlog.get_logger(__name__)


async def withdraw_unattended(store: Store, queue: str, generation: str, message_ids: Sequence[str]) -> None:
    """Cancels those that wait or are delayed; the others go on. Repeats what the store did not answer, which is safe:
    what is withdrawn stays withdrawn, and a queue that was made anew meanwhile has another generation ("": nothing was
    heard of these messages yet)."""
    loop = asyncio.get_running_loop()
    until = loop.time() + KEEP_TRYING_S
    done = 0
    while done < len(message_ids):
        try:
            await store.withdraw(
                queue, message_ids[done : done + MOST_IDS], generation=generation, budget_s=STORE_BUDGET_S
            )
        except NotThere:
            return
        except HeadwayError as error:
            if loop.time() >= until:
                log.warning(
                    "watch.unattended_left", queue=queue, count=len(message_ids) - done, reason=error.reason.name
                )
                return
            await asyncio.sleep(_PAUSE_S)
        else:
            done += MOST_IDS
