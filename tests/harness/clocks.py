"""An event loop whose clock is the test's: it jumps to the next timer, so hours take no time and spans are exact."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class JumpingLoop(asyncio.SelectorEventLoop):
    """Never waits: what it would have waited is added to its clock."""

    def __init__(self) -> None:
        self.jumped_s = 0.0
        loop = self

        class Selector(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> Any:
                assert timeout is not None, "everybody waits for ever"
                loop.jumped_s += max(timeout, 0)
                return super().select(0)

        super().__init__(Selector())

    def time(self) -> float:
        return self.jumped_s


def run(work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """The outcome of `work()` on such a loop."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(work())
