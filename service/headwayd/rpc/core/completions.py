"""What gRPC has done: a thread waits for it and wakes the event loop, which then looks by itself.

As long as the loop finds something at each of its turns the thread stands still, for two threads that take Python's
lock from each other in turn get less done than one. So the busier the loop, the less it costs to hear of a call. Where
cores are short it goes on standing still, and the loop looks now and then (`pacing.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from grpc._cython import cygrpc  # type: ignore[attr-defined]  # the public ways to it are grpc.server and grpc.aio

from headwayd.rpc.core.pacing import Pacing

Event = Any  # of cygrpc: has `success`, and what the operations brought

_AT_ONCE = 0.0  # a deadline that is past
_PAUSE_S = 0.001  # the least that uvloop can wait
# So much is followed at most in one turn of the event loop: with one connection thousands of streams may end at once.
_AT_A_TURN = 64


class Tag:
    """What follows when an operation of gRPC's is done: `then`, on the event loop. The thread, if it is there first,
    asks `early` whether that is necessary. It must be quick."""

    __slots__ = ("early", "then")

    def __init__(self, then: Callable[[Event], None], early: Callable[[Event], bool] | None = None) -> None:
        self.then = then
        self.early = early


class Completions:
    """A completion queue of gRPC's. Operations on it are begun with a `Tag`, or None if nothing follows.

    It is open until it was told to `close` and all who may begin operations have left. It belongs to the event loop in
    which it was made; what follows there has the context variables of whoever made it. `pauses`: see Pacing.
    """

    def __init__(self, pauses: Callable[[int], bool] | None = None) -> None:
        self.queue = cygrpc.CompletionQueue()
        self.loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._arrived: deque[tuple[Tag, Event]] = deque()  # by the thread
        self._next_turn: list[Callable[[], None]] = []
        self._is_turning = False  # the loop looks at its next turn
        self._left = _AT_A_TURN  # to be followed until then
        self._stands_still = False  # the thread, at the gate
        self._gate = threading.Semaphore(0)
        self._pauses = pauses or Pacing().pauses
        self._is_pausing = False  # the loop looks when that is over, the thread stands still
        self._users = self._entered = 0
        self._is_closing = self._is_closed = False
        threading.Thread(target=self._read, name="grpc completions", daemon=True).start()

    def enter(self) -> None:
        """Somebody may begin operations from now on."""
        self._users += 1
        self._entered += 1

    def leave(self) -> None:
        """They do not any more."""
        self._users -= 1
        self._close_unused()

    def close(self) -> None:
        """Ends it, as soon as nobody uses it any more and all that was begun is done. Idempotent."""
        self._is_closing = True
        self._close_unused()

    def _close_unused(self) -> None:
        if self._is_closing and not self._users and not self._is_closed:
            self._is_closed = True
            self.queue.shutdown()  # gRPC ends the process of whoever begins something behind this

    def look(self) -> bool:
        """Does now what follows from what is done; whether there was anything. Much of what is begun is done at once,
        and to be told of it by the thread costs more than to look. What is too much for this turn of the loop is done
        in the next ones."""
        found = False
        poll, nothing = self.queue.poll, cygrpc.CompletionType.queue_timeout
        while not self._is_closed:
            if not self._left:
                self._see_to_a_turn()
                break
            event = poll(_AT_ONCE)
            if event.tag is not None:
                self._left -= 1
                self._follow(event.tag, event)
            elif event.completion_type == nothing:
                break
            found = True
        return found

    def at_next_turn(self, do: Callable[[], None]) -> None:
        """Has the event loop do this when what is ready now has had its turn."""
        self._next_turn.append(do)
        self._see_to_a_turn()

    def _see_to_a_turn(self) -> None:
        if not self._is_turning:
            self._is_turning = True
            self.loop.call_soon(self._turn, context=self._context)

    def _turn(self) -> None:
        found = False
        self._left = _AT_A_TURN
        while self._arrived:
            self._follow(*self._arrived.popleft())
            found = True
        due, self._next_turn = self._next_turn, []
        for do in due:
            do()
        if found or due or self.look():
            self.loop.call_soon(self._turn, context=self._context)
            return
        self._is_turning = False
        if self._arrived:  # since it was looked for, by a thread that still saw a turn coming
            self._is_turning = True
            self.loop.call_soon(self._turn, context=self._context)
        elif self._stands_still and not self._is_pausing:
            if not self._is_closing and self._pauses(self._entered):
                self._is_pausing = True
                self.loop.call_later(_PAUSE_S, self._pause_ended, context=self._context)
            else:
                self._stands_still = False
                self._gate.release()

    def _pause_ended(self) -> None:
        self._is_pausing = False
        if not self._is_turning:
            self._is_turning = True
            self._turn()

    def _follow(self, tag: Tag, event: Event) -> None:
        try:
            tag.then(event)
        except Exception as error:  # noqa: BLE001 - of what else is done must be heard, too
            self.loop.call_exception_handler({"message": "what follows in a call met a defect", "exception": error})

    def _read(self) -> None:
        """The thread."""
        poll, ended = self.queue.poll, cygrpc.CompletionType.queue_shutdown
        while True:
            event = poll()
            tag = event.tag
            if tag is None:
                if event.completion_type == ended:
                    return
            elif tag.early is None or not tag.early(event):
                self._stands_still = True
                self._arrived.append((tag, event))
                event = tag = None  # nothing of a call may be kept while waiting: it may be the last that holds it
                if not self._is_turning:
                    self._is_turning = True
                    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be woken
                        self.loop.call_soon_threadsafe(self._turn, context=self._context)
                self._gate.acquire()
            event = tag = None
