"""The bound on streams that are no calls of ours: health's Watch, and reflection.

They are served without credentials, and do not pass the gate: whoever asks for health must not wait for anybody's
calls. So they have a bound of their own; within it they count as running, for each takes as much memory as a stream.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from grpc.aio import ServicerContext

from headwayd.domain.errors import Overloaded, ShuttingDown
from headwayd.domain.limits import Limits
from headwayd.rpc.status import abort
from headwayd.rpc.streams import Requests

Context = ServicerContext[Any, Any]
# Of one connection. A client that follows health does so once for each service that it calls.
MOST_OF_A_CONNECTION = 16


class Beside:
    """Counts them. `running_count` tells how many handlers of calls run."""

    def __init__(self, limits: Limits, running_count: Callable[[], int]) -> None:
        self._limits = limits
        self._running_count = running_count
        self._most = max(limits.max_running_calls // 10, 1)
        self._count_of: Counter[str] = Counter()  # by the address of the other side
        self._asked: set[Requests] = set()
        self._is_draining = False
        self.count = 0

    def start_draining(self) -> None:
        """Ends those that stream their requests, with SHUTTING_DOWN, and others as they begin. Idempotent."""
        self._is_draining = True
        for requests in tuple(self._asked):
            requests.end(ShuttingDown("this service process is going down"))

    @contextlib.contextmanager
    def ending(self, requests: Requests) -> Iterator[None]:
        """Within this block the requests end when draining begins."""
        self._asked.add(requests)
        if self._is_draining:
            self.start_draining()
        try:
            yield
        finally:
            self._asked.discard(requests)

    async def admit(self, context: Context) -> None:
        """Ends the call if there are too many. Not after it has entered."""
        error = self._refusal_of(context.peer())
        if error is not None:
            await abort(context, error)

    @contextlib.contextmanager
    def entered(self, context: Context) -> Iterator[None]:
        """Within this block the stream, which was admitted just now, counts."""
        connection = context.peer()
        self.count += 1
        self._count_of[connection] += 1
        try:
            yield
        finally:
            self.count -= 1
            self._count_of[connection] -= 1
            if not self._count_of[connection]:
                del self._count_of[connection]

    def _refusal_of(self, connection: str) -> Overloaded | None:
        # On a unix socket all connections have one address; only this machine can be there.
        if not connection.startswith("unix:") and self._count_of[connection] >= MOST_OF_A_CONNECTION:
            return Overloaded(f"this connection has {MOST_OF_A_CONNECTION} such streams, as many as one may")
        if self.count >= self._most or self._running_count() + self.count >= self._limits.max_running_calls:
            text = "the service has as many such streams as it can take"
            return Overloaded(text, metadata={"limit": "max_running_calls"})
        return None
