"""Whether there is IPv6: Python may know it where the machine has no address of it."""

from __future__ import annotations

import socket


def has_ipv6() -> bool:
    """Whether this machine has an address of that family."""
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        return False
    return True
