"""What a call is told that nobody can begin in time, and when its caller shall come again.

A refusal costs the process more than half of what a call costs that is done (docs/measurements.md). Callers who do as
they are told come back after the delay; were it always the same, thousands of them would keep the process busy with
refusals alone. So it grows until they are no more than so many a second, and shrinks as fast when they are fewer.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from math import sqrt
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from grpc.aio import ServicerContext

from headwayd.domain.errors import Overloaded
from headwayd.rpc.status import Refusal

if TYPE_CHECKING:
    from headwayd.rpc.edge import Gate

# So many refusals a second take less than a tenth of a core.
BEARABLE_PER_S = 400
SHORTEST_S = 1.0  # what protocol.md promises
LONGEST_S = 10.0  # a process that has got room again must not stand idle for longer
# Callers who were refused together must not come back together: each is told one of these in turn.
_SPREAD = (1.0, 1.3, 1.1, 1.4, 1.2)
_SPAN_S = 1.0
_TWICE, _HALF = 2.0, 0.5


class RetryDelay:
    """The delay in force, in seconds, from the refusals of the last second. `clock` is monotonic, in s."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._count = 0
        self.seconds = SHORTEST_S

    def note(self) -> bool:
        """One more call is refused. Whether the delay may have changed with it."""
        now = self._clock()
        spans = int((now - self._began) / _SPAN_S)
        if spans:
            # By the root only: who was told of a change comes back later, and until then it must not be made again.
            change = min(max(sqrt(self._count / BEARABLE_PER_S), _HALF), _TWICE)
            change *= _HALF ** (spans - 1)  # in those after the first nobody was refused
            self.seconds = min(max(self.seconds * change, SHORTEST_S), LONGEST_S)
            self._began, self._count = now, 0
        self._count += 1
        return spans > 0


class Refusing:
    """Ends calls with OVERLOADED. The answers are made once a second and not for each call: to refuse must cost little,
    or refusing is all that is done."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._delay = RetryDelay(clock=clock)
        self._turn = 0
        self._answers = self._made()

    def _made(self) -> tuple[Refusal, ...]:
        text = "more calls come than the service can do"
        delays_ms = (round(self._delay.seconds * share * 1_000) for share in _SPREAD)
        return tuple(Refusal(Overloaded(text, retry_after_ms=delay_ms)) for delay_ms in delays_ms)

    async def end(self, context: ServicerContext[Any, Any]) -> NoReturn:
        """Ends the call. Never returns."""
        if self._delay.note():
            self._answers = self._made()
        self._turn = (self._turn + 1) % len(self._answers)
        await self._answers[self._turn].end(context)


def refusals(paths: Iterable[str], *, gate: Gate) -> Mapping[str, grpc.RpcMethodHandler[Any, Any]]:
    """Handlers for these calls which end them before their request is read. To gRPC they are streams, for of these it
    reads only what is asked for."""

    async def refuse(_requests: AsyncIterator[bytes], context: ServicerContext[Any, Any]) -> None:
        gate.enter()
        backlog = gate.backlog
        began = backlog.enter() if backlog else 0
        if backlog:
            backlog.refused()
        try:
            await gate.refusing.end(context)
        finally:
            if backlog:
                backlog.leave(began)
            gate.leave()

    # A coroutine function, which grpc.aio takes as it does generators, but the types do not know that.
    behaviour: Any = refuse
    handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(behaviour)
    return dict.fromkeys(paths, handler)
