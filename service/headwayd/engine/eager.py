"""Tasks that begin at once, in the turn of the loop in which they are made: what Python has from 3.12 on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class _Begun(Coroutine[Any, Any, ResultT]):
    """A coroutine that runs up to its first wait when `begin` is called, and is then gone on with by its task."""

    def __init__(self, work: Coroutine[Any, Any, ResultT]) -> None:
        self._work = work
        self._first: Any = None  # what it waits for
        self._is_waiting = False
        self._end: BaseException | None = None

    def begin(self) -> None:
        try:
            self._first = self._work.send(None)
            self._is_waiting = True
        except BaseException as end:  # noqa: BLE001 - its task raises it
            self._end = end

    def send(self, value: Any) -> Any:
        """Goes on."""
        if self._end is not None:
            raise self._end
        if self._is_waiting:
            self._is_waiting = False
            return self._first
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        """Ends what it waits for by an error."""
        if self._end is not None:
            raise self._end
        self._is_waiting = False
        return self._work.throw(*error)

    def close(self) -> None:
        """Ends it where it stands."""
        self._work.close()

    def __await__(self) -> Generator[Any, Any, ResultT]:
        raise TypeError("only its task may wait for it")


def eager_task(work: Coroutine[Any, Any, ResultT], *, name: str) -> asyncio.Task[ResultT]:
    """A task in which `work` has come to its first wait, or its end, when this returns. Within `work` it is the current
    one all the time."""
    loop = asyncio.get_running_loop()
    begun = _Begun(work)
    task = loop.create_task(begun, name=name)
    # asyncio's documentation has these two for whoever runs a part of a task by himself.
    enter, leave = asyncio._enter_task, asyncio._leave_task  # noqa: SLF001
    caller = asyncio.current_task()
    if caller is not None:
        leave(loop, caller)
    enter(loop, task)
    try:
        begun.begin()
    finally:
        leave(loop, task)
        if caller is not None:
            enter(loop, caller)
    return task
