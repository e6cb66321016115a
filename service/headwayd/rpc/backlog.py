"""Whether more calls come than this process can begin, and which of them must be refused then.

Calls stand in a line of gRPC's own until Python accepts them, first come, first served. When more come than are done,
that line grows until whoever is served has waited longer than any caller does. So while it stays long, calls are
refused as soon as they are accepted, which is far cheaper than to do them, and the line moves on: but for as many as
keep the process busy, or nothing would be done at all. As with CoDel (RFC 8289) a long line means nothing as such, for
many calls may come at once; one that does not get short does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from grpc_channelz.v1 import channelz_pb2
from grpc_channelz.v1.channelz import ChannelzServicer

# Calls in gRPC's line: as many as are accepted in about half a second. It is what is left for the time in which callers
# who were refused stay away.
LONG = 2_000
# So long must the line be long at every look before anything is refused.
PATIENCE_S = 0.5
# Having been behind, the process is behind again at the first look at a long line, for so long.
WATCHFUL_S = 5.0
# A look costs about 0.3 ms, and 40 µs more for each connection (gRPC 1.85: 0.2 s with 5,000). So it is taken only when
# a call comes that might have to be refused, and looking takes no more than this share of the time.
BETWEEN_LOOKS_S = 0.1
LOOKING_SHARE = 0.02
# While behind, so many fresh calls may run: enough to keep the process and a pipeline to the store busy. Where Python
# is what is short there are hardly more at a time, however long the line is: with 64 allowed nearly nobody was refused
# until the line was full, and with 12 the process had too little to do (docs/measurements.md).
BUSY = 20
# Until then a call is fresh; one that runs for longer waits for something else than for this process.
FRESH_S = 0.5


def server_ids() -> frozenset[int]:
    """The gRPC servers of this process, by the numbers that gRPC's own books give them. These tell nothing of their
    age: the new one is that which was not there before."""
    found: set[int] = set()
    while True:
        start = max(found, default=0) + 1
        page = ChannelzServicer.GetServers(channelz_pb2.GetServersRequest(start_server_id=start), None)
        found.update(int(server.ref.server_id) for server in page.server)
        if page.end or not page.server:
            return frozenset(found)


def pending_count(server_ids: Iterable[int], running_count: Callable[[], int]) -> Callable[[], int]:
    """Counts the calls of these gRPC servers that nobody has accepted yet. `running_count` tells how many run.

    By gRPC's own books (channelz, its documented way to ask): began, less those that ended or run.
    """
    requests = [channelz_pb2.GetServerRequest(server_id=server_id) for server_id in server_ids]

    def count() -> int:
        books = [ChannelzServicer.GetServer(request, None).server.data for request in requests]
        begun = sum(int(one.calls_started) - int(one.calls_succeeded) - int(one.calls_failed) for one in books)
        return begun - running_count()

    return count


class Backlog:
    """Looks at the line of calls that nobody has accepted yet, whenever one has been. `clock` is monotonic, in s."""

    def __init__(self, count_pending: Callable[[], int], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._count_pending = count_pending
        self._clock = clock
        self._look_at = self._looked_at = float("-inf")
        self._long_since: float | None = None
        self._watchful_until = 0.0
        self._fresh: dict[int, int] = {}  # calls that run, by the span of FRESH_S in which they began
        self.is_behind = False

    def enter(self) -> int:
        """A call begins to run. Returns what `leave` wants."""
        now = self._clock()
        began = int(now / FRESH_S)
        if began not in self._fresh:
            self._fresh = {then: count for then, count in self._fresh.items() if then >= began - 1}
            self._fresh[began] = 0
        self._fresh[began] += 1
        if now >= self._look_at and sum(self._fresh.values()) > BUSY:
            self._look(now)
            self._look_at = now + max(BETWEEN_LOOKS_S, (self._clock() - now) / LOOKING_SHARE)
        return began

    def leave(self, began: int) -> None:
        """A call has ended."""
        if began in self._fresh:
            self._fresh[began] -= 1

    @property
    def must_refuse(self) -> bool:
        """Whether the call that entered last must not go on."""
        return self.is_behind and sum(self._fresh.values()) > BUSY

    @property
    def must_refuse_next(self) -> bool:
        """Whether a call that has not entered yet must not."""
        return self.is_behind and sum(self._fresh.values()) >= BUSY

    def _look(self, now: float) -> None:
        if now - self._looked_at > WATCHFUL_S:  # nobody looked because there was no need
            self._long_since = None
        self._looked_at = now
        if self._count_pending() < LONG:
            self.is_behind, self._long_since = False, None
            return
        if self._long_since is None:
            self._long_since, self.is_behind = now, False
        if now - self._long_since >= PATIENCE_S or now < self._watchful_until:
            self.is_behind = True
            self._watchful_until = now + WATCHFUL_S
