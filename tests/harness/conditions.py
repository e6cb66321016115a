"""Waiting for something to become true, with a deadline, in place of sleeping and hoping."""

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, overload

_T = TypeVar("_T")
_STEP_S = 0.01


@overload
async def eventually(predicate: Callable[[], Coroutine[Any, Any, _T]], *, within: float = 5.0) -> _T: ...
@overload
async def eventually(predicate: Callable[[], _T], *, within: float = 5.0) -> _T: ...
async def eventually(predicate: Callable[[], Any], *, within: float = 5.0) -> Any:
    """The first truthy value of `predicate` (plain or async); fails after `within` seconds.

    An AssertionError of the predicate counts as "not yet", and is the failure's cause if the deadline passes.
    """
    deadline = time.monotonic() + within
    while True:
        last: object = None
        try:
            answer = predicate()
            value = await answer if inspect.isawaitable(answer) else answer
            if value:
                return value
            last = value
        except AssertionError as error:
            last = error
        if time.monotonic() >= deadline:
            cause = last if isinstance(last, AssertionError) else None
            raise AssertionError(f"not true within {within} s; last seen: {last!r}") from cause
        await asyncio.sleep(_STEP_S)


def eventually_sync(predicate: Callable[[], _T], *, within: float = 5.0) -> _T:
    """The same for fixtures and processes, outside any event loop."""
    deadline = time.monotonic() + within
    while not (value := predicate()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"not true within {within} s; last seen: {value!r}")
        time.sleep(_STEP_S)
    return value
