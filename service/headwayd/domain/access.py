"""Who calls, and what they may do: callers' roles on queues, identities, and the quotas of a namespace.

A caller's role is not one of pressure's two roles (`domain.model.Role`), which foreign clients hold on a queue.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import IntFlag
from functools import lru_cache


class CallerRole(IntFlag):
    """What a caller is to a queue. An admin may do everything; each other role only its own part."""

    PRODUCER = 1
    CONSUMER = 2
    WATCHER = 4
    ADMIN = 8


ANY_ROLE = CallerRole.PRODUCER | CallerRole.CONSUMER | CallerRole.WATCHER | CallerRole.ADMIN
NO_ROLE = CallerRole(0)


@dataclass(frozen=True, slots=True)
class Grant:
    """Roles on the queues whose names match one of the patterns (`*`, `?`, `[…]`; letters as they are)."""

    roles: CallerRole
    queues: tuple[str, ...] = ("*",)

    def covers(self, queue: str) -> bool:
        """Whether it is about this queue."""
        return any(_pattern(pattern).match(queue) for pattern in self.queues)

    def covers_all(self, prefix: str) -> bool:
        """Whether it is about every queue whose name begins so."""
        return any(
            pattern.endswith("*") and not re.search(r"[*?\[]", pattern[:-1]) and prefix.startswith(pattern[:-1])
            for pattern in self.queues
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who calls. `name` is for the log; `expires_at` is in seconds since 1970, None = never."""

    name: str
    namespace: str
    grants: tuple[Grant, ...]
    expires_at: float | None = None

    def roles_on(self, queue: str) -> CallerRole:
        """All roles on one queue, by the name that callers know."""
        return _all_roles(grant for grant in self.grants if grant.covers(queue))

    def roles_on_all(self, prefix: str) -> CallerRole:
        """All roles on every queue whose name begins with `prefix`."""
        return _all_roles(grant for grant in self.grants if grant.covers_all(prefix))

    @property
    def roles(self) -> CallerRole:
        """All roles on whatever queue."""
        return _all_roles(self.grants)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """The most that a namespace may have; None = no such quota. How exact each is: docs/security.md."""

    queues: int | None = None
    messages: int | None = None
    bytes: int | None = None  # of the store's memory, for messages
    leases: int | None = None
    streams: int | None = None
    calls_per_second: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What a namespace has, as found in the store."""

    queues: Collection[str] = ()  # their names
    messages: int = 0
    bytes: int = 0
    leases: int = 0


NO_QUOTAS = Quotas()


def _all_roles(grants: Iterable[Grant]) -> CallerRole:
    roles = NO_ROLE
    for grant in grants:
        roles |= grant.roles
    return roles


@lru_cache(maxsize=4_096)
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(pattern))
