"""What the dashboard shows, asked by the calls that everybody has, with the credentials of whoever looks.

    all queues    List every few seconds tells which there are; WatchQueue follows each of the page
    one queue     WatchQueue, and Peek, ListLeased and ListDead every second
    one message   WatchPosition

Nothing is asked that does not change what is shown: an idle queue costs nothing but its watch.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from headwayd.domain.calls import Asked, CallFailed, Code
from headwayd.http.connecting import Calls
from headwayd.http.shows import Show

MOST_QUEUES = 100  # followed by one page
_QUEUES_EVERY, _QUEUE_EVERY = "1s", "0.5s"
_LIST_EVERY_S = 3.0
_LISTS_EVERY_S = 1.0
_MOST_ROWS = 50  # of a list of messages
_PAUSE_S, _LONG_PAUSE_S = 1.0, 15.0
_WITHIN_S = 5.0
_RESTS = 9  # whatever a round of questions takes, nine times as long nothing is asked

_QUEUES, _ADMIN = "/headway.v1.QueueService/", "/headway.v1.AdminService/"
# Asking again would not help.
FATAL = frozenset({Code.INVALID_ARGUMENT, Code.PERMISSION_DENIED, Code.UNAUTHENTICATED})
FIRST_PARTS = ("queues", "queue", "place")  # one of them tells that the caller may look
_NUMBERS = itertools.count(1)


@dataclass(frozen=True, slots=True)
class View:
    """What a page looks at: a message of a queue; else a queue; else the queues whose names begin with `prefix`, those
    after the name `after`."""

    prefix: str = ""
    after: str = ""
    queue: str = ""
    message: str = ""


class Overview:
    """Feeds one show. `authorization` is the caller's header, "" for none. It counts as a connection of its own: a page
    that looks at many queues takes none of the streams that others may have."""

    def __init__(self, calls: Calls, view: View, authorization: str) -> None:
        self._calls = calls
        self._view = view
        metadata = [("authorization", authorization)] if authorization else []
        peer = f"dashboard:{next(_NUMBERS)}"
        self._asked = Asked(metadata=metadata, peer=peer, within_s=_WITHIN_S)
        self._watched = Asked(metadata=metadata, peer=peer)

    async def run(self, show: Show) -> None:
        """Until it is cancelled. Raises CallFailed if the caller may not look at this at all."""
        try:
            if self._view.message:
                await self._message(show)
            elif self._view.queue:
                await self._queue(show)
            else:
                await self._queues(show)
        except* CallFailed as failed:
            raise _first(failed) from None

    # -- all queues ---------------------------------------------------------------------------------------------------

    async def _queues(self, show: Show) -> None:
        followed: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                began = asyncio.get_running_loop().time()
                try:
                    listed = await self._call(_QUEUES + "List", self._page())
                except CallFailed as error:
                    self._tell_refusal(show, "queues", error)
                    await asyncio.sleep(_PAUSE_S)
                    continue
                queues = {each["name"]: each for each in listed.get("queues", [])}
                for name in followed.keys() - queues.keys():
                    followed.pop(name).cancel()
                    show.drop(f"queue {name}")
                for name, queue in queues.items():
                    if name not in followed or followed[name].done():
                        show.tell(f"queue {name}", "queue", _text({"queue": queue}))
                        followed[name] = tasks.create_task(self._follow(show, name))
                shown = {"names": list(queues), "next": listed.get("nextPageToken", ""), "most": MOST_QUEUES}
                show.tell("queues", "queues", _text(shown))
                await _rest(began, _LIST_EVERY_S)

    def _page(self) -> dict[str, Any]:
        return {"prefix": self._view.prefix, "pageSize": MOST_QUEUES, "pageToken": self._view.after}

    async def _follow(self, show: Show, name: str) -> None:
        """Until the queue is gone, or cannot be followed for now: the next list tells its numbers, and begins anew."""
        try:
            await self._watch(show, f"queue {name}", name, _QUEUES_EVERY)
        except CallFailed as error:
            await asyncio.sleep(_LONG_PAUSE_S if error.code is Code.RESOURCE_EXHAUSTED else _PAUSE_S)

    async def _watch(self, show: Show, part: str, name: str, interval: str) -> None:
        request = _text({"queue": name, "interval": interval})
        stream = self._calls.stream(_QUEUES + "WatchQueue", request, self._watched, is_json=True)
        async with aclosing(stream) as replies:
            async for reply in replies:
                show.tell(part, "queue", reply)

    # -- one queue ----------------------------------------------------------------------------------------------------

    async def _queue(self, show: Show) -> None:
        name = self._view.queue
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._again(show, "queue", lambda: self._watch(show, "queue", name, _QUEUE_EVERY)))
            size: Mapping[str, Any] = {"queue": name, "withoutPayloads": True}
            for part, path, request in (
                ("waiting", _QUEUES + "Peek", {**size, "maxMessages": _MOST_ROWS}),
                ("leased", _ADMIN + "ListLeased", {"queue": name, "maxMessages": _MOST_ROWS}),
                ("dead", _ADMIN + "ListDead", {**size, "pageSize": _MOST_ROWS}),
            ):
                tasks.create_task(self._list(show, part, path, _text(request)))

    async def _list(self, show: Show, part: str, path: str, request: bytes) -> None:
        """The caller may see the queue, but not this: told once."""
        while True:
            began = asyncio.get_running_loop().time()
            try:
                show.tell(part, part, await self._calls.call(path, request, self._asked, is_json=True))
            except CallFailed as error:
                if error.code is Code.UNAUTHENTICATED:
                    raise  # credentials that have expired
                show.tell(part, "refused", _refusal(part, error))
                if error.code in FATAL or error.code is Code.UNIMPLEMENTED:
                    return
            await _rest(began, _LISTS_EVERY_S)

    # -- one message --------------------------------------------------------------------------------------------------

    async def _message(self, show: Show) -> None:
        await self._again(show, "place", lambda: self._places(show))
        await asyncio.Event().wait()  # it has ended; the page goes on showing how

    async def _places(self, show: Show) -> None:
        view = self._view
        request = _text({"queue": view.queue, "messages": {"ids": [view.message]}})
        stream = self._calls.stream(_QUEUES + "WatchPosition", request, self._watched, is_json=True)
        async with aclosing(stream) as replies:
            async for reply in replies:
                show.tell("place", "place", reply)

    # -- asking -------------------------------------------------------------------------------------------------------

    async def _again(self, show: Show, part: str, watch: Callable[[], Awaitable[None]]) -> None:
        """Watches until the watch ends by itself. Raises CallFailed if it is not for this caller."""
        while True:
            try:
                return await watch()
            except CallFailed as error:
                self._tell_refusal(show, part, error)
            await asyncio.sleep(_PAUSE_S)

    @staticmethod
    def _tell_refusal(show: Show, part: str, error: CallFailed) -> None:
        if error.code in FATAL:
            raise error
        show.tell(part, "refused", _refusal(part, error))

    async def _call(self, path: str, request: Mapping[str, Any]) -> Any:
        return json.loads(await self._calls.call(path, _text(request), self._asked, is_json=True))


async def _rest(began: float, every_s: float) -> None:
    took = asyncio.get_running_loop().time() - began
    await asyncio.sleep(max(every_s - took, _RESTS * took))


def _text(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _refusal(part: str, error: CallFailed) -> bytes:
    return _text({"part": part, "code": error.code, "text": error.text})


def _first(failed: BaseExceptionGroup[CallFailed]) -> CallFailed:
    found: BaseException = failed
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, CallFailed)
    return found
