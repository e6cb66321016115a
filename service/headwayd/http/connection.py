"""One connection to the HTTP port, as the doors know it: how long it may be silent, and what ends with it."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

from starlette.types import Scope

_KEY = "connection"


class Connection:
    """Lives as long as the connection. `silence_s`: for how long it is kept after an answer without a request, if that
    is longer than others are."""

    def __init__(self) -> None:
        self.is_over = False
        self.silence_s = 0.0
        self._on_end: list[tuple[Context, Callable[[], None]]] = []

    def on_end(self, act: Callable[[], None]) -> None:
        """What is done when it is over, in the name of who asks for it now; at once, if it is over."""
        if self.is_over:
            act()
        else:
            self._on_end.append((copy_context(), act))

    def end(self) -> None:
        """The client has gone, or was sent away."""
        self.is_over = True
        acts, self._on_end = self._on_end, []
        for context, act in acts:
            context.run(act)

    def joined_to(self, state: dict[str, Any]) -> dict[str, Any]:
        """The `state` that each request of this connection is given."""
        return {**state, _KEY: self}


def connection_of(scope: Scope) -> Connection:
    """The connection that a request came by."""
    found: Connection = scope["state"][_KEY]
    return found
