"""Hears that something may have changed for those who wait: two connections to each server for a whole process, and no
polling.

The store tells of changes of the keys that somebody waits on, whoever changed them: a Headway script or a foreign
client. Scripts publish a producer's turn, due times, and kicks. All of it is only a hint. Nothing is lost if one is:
after every reconnect everybody is told to look again, and the engine looks by itself from time to time.

In a cluster every primary is heard, because what a script publishes is counted by those who listen to its own node. The
other nodes pass it on, too: what comes from a node that does not serve the queue is one that was heard already.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from headwayd.store.address import Host
from headwayd.store.connections import ConnectionSource
from headwayd.store.hint_wire import INVALIDATE, HintWire
from headwayd.store.keys import (
    DUE_CHANNEL,
    PRESSURE,
    WAKE_CHANNEL,
    base_key,
    blocked_at_keys,
    empty_line_keys,
    looked_at_keys,
    queue_of_base,
    stood_at_keys,
    watched_keys,
)

_KICK = b"kick"
_TOGETHER = 100  # queues in one question: some 50 microseconds of the server
_APART = 5  # where each is a question of its own
# How soon those are told to look again whose queue is being moved to another node, or is not there.
_LOOK_AGAIN_S = 0.05

HintListener = Callable[[str | None, bool], None]
DueAtListener = Callable[[str, int], None]  # with the instant, by the store's clock


class Interest:
    """Keys whose next change is told to one listener, with the queue's name, whoever else looks at the same queue. A
    queue is told of once for all its keys: whoever still waits arms them all anew. Among them is one that changes when
    the queue goes, so nothing is kept of a queue that is no more."""

    def __init__(self, listener: Callable[[str], None] = lambda _queue: None) -> None:
        self.listener = listener
        self._queues: dict[bytes, str] = {}  # by key, as long as no change of the queue has been heard
        self._keys: dict[str, set[bytes]] = {}  # by queue

    def add(self, queue: str, keys: Iterable[str]) -> None:
        """The next change of these is told."""
        encoded = [key.encode() for key in keys]
        self._queues.update(dict.fromkeys(encoded, queue))
        self._keys.setdefault(queue, set()).update(encoded)

    def forget(self, queue: str) -> None:
        """Nothing is told of this queue until something is added."""
        for key in self._keys.pop(queue, ()):
            del self._queues[key]

    def clear(self) -> None:
        """Nothing is told until something is added."""
        self._queues.clear()
        self._keys.clear()

    def tell(self, keys: Iterable[bytes]) -> None:
        """These have changed."""
        for queue in {queue for key in keys if (queue := self._queues.get(key)) is not None}:
            self.forget(queue)
            self.listener(queue)


class Hints:
    """Open as long as the process serves. Listeners are called on the event loop and must not block: hints with a
    queue's name (None: any) and whether somebody of this process was called by name, due times with a queue's name and
    milliseconds since 1970. Changes of the two lines of those who wait are told apart: they give nobody anything to
    lease, or room.

    `home` tells which server has a base key: one of those that `hear` was given.
    """

    def __init__(
        self,
        *,
        prefix: str,
        channels: str,
        process: str,
        call_timeout_s: float,
        home: Callable[[bytes], Host | None] = lambda _base: None,
        is_cluster: bool = False,
    ) -> None:
        self._prefix = prefix
        self._call_timeout_s = call_timeout_s
        self._home = home
        self._is_cluster = is_cluster
        self._wake = f"{channels}{WAKE_CHANNEL}{process}".encode()
        self._due = f"{channels}{DUE_CHANNEL}".encode()
        self._waited_for = Interest(self._hint)
        self.standing = Interest()
        self.blocked = Interest()
        self._interests = (self._waited_for, self.standing, self.blocked)
        self._wires: dict[Host | None, HintWire] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.on_hint: HintListener = lambda _queue, _is_call: None
        self.on_due: DueAtListener = lambda _queue, _due_ms: None
        self.on_reconnect: Callable[[], None] = lambda: None

    def hear(self, sources: Mapping[Host | None, ConnectionSource]) -> None:
        """From now on hears these servers, and no others."""
        for host in set(self._wires) - set(sources):
            task = asyncio.create_task(self._wires.pop(host).close(), name="hints")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        for host in set(sources) - set(self._wires):
            self._wires[host] = HintWire(
                sources[host],
                channels=(self._wake, self._due),
                call_timeout_s=self._call_timeout_s,
                on_message=partial(self._dispatch, host),
                on_connected=self.look_again,
            )
            self._wires[host].start()

    @property
    def are_heard(self) -> bool:
        """Whether every server is, so that each counts this process among those who listen."""
        return all(wire.is_up for wire in self._wires.values())

    async def wait(self, *, wait_s: float) -> None:
        """Returns when all servers are heard, or after `wait_s` (it goes on trying)."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                for wire in list(self._wires.values()):
                    await wire.connected()

    async def close(self) -> None:
        """Stops listening."""
        self.hear({})
        if self._closing:
            await asyncio.wait(set(self._closing))

    def renew(self) -> None:
        """The servers may not be the right ones any more: connects anew."""
        for wire in self._wires.values():
            wire.renew()

    def look_again(self) -> None:
        """Something may have been missed: everybody is told."""
        for interest in self._interests:
            interest.clear()
        self.on_hint(None, False)
        self.on_reconnect()

    @property
    def quiet_at_once(self) -> int:
        """How many queues `find_quiet` may be asked about in a second, for little."""
        return _APART if self._is_cluster else 2 * _TOGETHER

    async def arm(self, queue: str, *, until_drained: bool) -> bool:
        """From now on a change of the queue's keys is heard, once: then it must be armed again. What changed before
        is not heard, so look after arming. Does nothing while there is no connection: reconnecting tells everybody
        anyway. False if a look for something to lease would be in vain: the queue is open, empty, and nobody's."""
        base = self._base(queue)
        absent, present = empty_line_keys(base)
        watched = watched_keys(base, until_drained=until_drained)
        counts = await self._arm(self._waited_for, queue, base, watched, absent, present)
        return counts[1:] != [0, len(present)]

    async def find_quiet(self, queues: Sequence[str]) -> Collection[str]:
        """Arms all of them, and tells those of which `arm` would say False. Only where not all are quiet each is asked
        about by itself; in a cluster each always is, for each may be in another slot."""
        together = 1 if self._is_cluster else _TOGETHER
        groups = [tuple(queues[start : start + together]) for start in range(0, len(queues), together)]
        quiet = await self._quiet_of(groups)
        quiet += await self._quiet_of(
            [(queue,) for group in groups if len(group) > 1 and group not in quiet for queue in group]
        )
        return frozenset(queue for group in quiet for queue in group)

    async def _quiet_of(self, groups: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """Those of which every queue is quiet; none if that is not known."""
        by_host: dict[Host | None, list[tuple[str, ...]]] = {}
        for group in groups:
            by_host.setdefault(self._home(self._base(group[0]).encode()), []).append(group)
        quiet = []
        for host, those in by_host.items():
            wire = self._wires.get(host)
            if wire is None or not wire.is_up:
                continue
            keys = [self._quiet_keys(group) for group in those]
            counts = await wire.watch(*(kind for group in keys for kind in group))
            found = zip(counts[::2], counts[1::2], strict=True) if counts else ()
            quiet += [
                group
                for group, (_, present), count in zip(those, keys, found, strict=False)
                if count == (0, len(present))
            ]
        return quiet

    def _quiet_keys(self, queues: Sequence[str]) -> tuple[list[str], list[str]]:
        """Of all of them those that are absent, and those that are there, if all are quiet. A change is heard."""
        absent: list[str] = []
        present: list[str] = []
        for queue in queues:
            these_absent, these_present = empty_line_keys(self._base(queue))
            absent += these_absent
            present += these_present
            self._waited_for.add(queue, (*these_absent, *these_present))
        return absent, present

    async def arm_watch(self, queue: str) -> None:
        """The same for those who only look."""
        base = self._base(queue)
        await self._arm(self._waited_for, queue, base, looked_at_keys(base))

    async def arm_standing(self, queue: str) -> None:
        """The same for the consumer line, or that it goes with its queue."""
        base = self._base(queue)
        await self._arm(self.standing, queue, base, (*stood_at_keys(base), base + PRESSURE["bound"]))

    async def arm_blocked(self, queue: str) -> None:
        """The same for the producer line."""
        base = self._base(queue)
        await self._arm(self.blocked, queue, base, blocked_at_keys(base))

    def _base(self, queue: str) -> str:
        return base_key(self._prefix, queue, is_cluster=self._is_cluster)

    async def _arm(
        self, interest: Interest, queue: str, base: str, keys: tuple[str, ...], *more: tuple[str, ...]
    ) -> list[int]:
        """How many there are of the keys, and of each group of `more`; nothing if that is not known."""
        wire = self._wires.get(self._home(base.encode()))
        if wire is None or not wire.is_up:
            return []
        interest.add(queue, keys)
        counts = await wire.watch(keys, *more)
        is_absent = counts is not None and counts[:1] == [0]
        if is_absent:  # there is no such queue, so its keys may never change
            interest.forget(queue)
        if counts is None or is_absent:
            asyncio.get_running_loop().call_later(_LOOK_AGAIN_S, interest.listener, queue)
        return counts or []

    def _dispatch(self, host: Host | None, channel: bytes, content: Any) -> None:
        if channel == INVALIDATE:
            if content is None:
                for interest in self._interests:
                    interest.clear()
                self.on_hint(None, False)
                return
            for interest in self._interests:
                interest.tell(content)
        elif channel == self._wake:
            self._tell(host, content, is_call=True)
        elif channel == self._due:
            what, _, base = content.partition(b" ")
            if what == _KICK:
                self._tell(host, base, is_call=False)
            elif what.isdigit() and (queue := self._queue_of(host, base)) is not None:
                self.on_due(queue, int(what))

    def _hint(self, queue: str) -> None:
        self.on_hint(queue, False)

    def _tell(self, host: Host | None, base: bytes, *, is_call: bool) -> None:
        queue = self._queue_of(host, base)
        if queue is not None:
            self.on_hint(queue, is_call)

    def _queue_of(self, host: Host | None, base: bytes) -> str | None:
        home = self._home(base)
        if home != host and home in self._wires:
            return None
        return queue_of_base(self._prefix, base, is_cluster=self._is_cluster)
