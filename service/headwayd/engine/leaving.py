"""What must be done in the end, as leaving a line: whoever is left standing there keeps the others waiting as long as
this process lives."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from headwayd.domain.errors import NewerLayout, QueueDeleted, QueueNotFound, Unavailable

ON_ITS_WAY_S = 0.5  # a step whose answer was lost may be done by the store so much later
_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 2.0
log = structlog.get_logger(__name__)


async def surely(queue: str, act: Callable[[], Awaitable[object]], *, until_then: str = "line.not_left") -> None:
    """Does it as often as it takes until the store has done it, or the queue is no more; the log tells each time what
    is so until then. Where a newer version keeps the queue it cannot be done: a process of that version does it when
    this one has gone.
    """
    pause_s = _PAUSE_S
    while True:
        try:
            await act()
        except (QueueNotFound, QueueDeleted):
            return
        except NewerLayout as error:
            log.info(until_then, queue=queue, reason=error.reason.name)
            return
        except Unavailable as error:
            log.info(until_then, queue=queue, reason=error.reason.name)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        else:
            return
