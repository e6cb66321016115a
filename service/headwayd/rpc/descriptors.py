"""File descriptors: each connection needs one, and many systems begin a process with fewer than it may have."""

from __future__ import annotations

import resource

# What the process needs beside its callers' connections: those to the store, sockets to listen on, its log.
_OWN = 256


def make_room_for(connections: int) -> int:
    """Raises this process's soft limit as far as the system lets it. How many connections it can hold then, which may
    be fewer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + _OWN
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return connections
    target = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if target > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    return max(min(connections, max(soft, target) - _OWN), 0)
