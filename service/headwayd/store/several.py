"""Asks several servers at once, and makes do with those that answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from headwayd.domain.errors import StoreUnavailable
from headwayd.store.link import Link

_Answer = TypeVar("_Answer")


async def ask_each(
    links: Sequence[Link], ask: Callable[[Link], Awaitable[_Answer]], *, within_s: float
) -> list[_Answer]:
    """What those answer that do, in the order of `links`. Raises the first's error if none does."""
    if not links:
        raise StoreUnavailable("no server of the store is known", metadata={"cause": "REFUSED"})
    tasks = [asyncio.ensure_future(ask(link)) for link in links]
    try:
        await asyncio.wait(tasks, timeout=within_s)
        errors = [task.exception() for task in tasks if task.done()]
        answers = [task.result() for task in tasks if task.done() and task.exception() is None]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if answers:
        return answers
    for error in errors:
        if error is not None:
            raise error
    raise StoreUnavailable("the store did not answer in time", metadata={"cause": "SILENT"})
