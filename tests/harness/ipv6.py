"""Whether there is IPv6: Python may know it where the machine has no address of it."""

from __future__ import annotations

import errno
import socket
from typing import Any


def has_ipv6() -> bool:
    """Whether this machine has an address of that family."""
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        return False
    return True


def without_ipv6(refusal: int) -> type[socket.socket]:
    """Sockets of a machine that has none, and refuses with this errno to make them (EAFNOSUPPORT) or to bind them."""

    class WithoutIpv6(socket.socket):
        def __init__(self, family: int = -1, *more: Any, **named: Any) -> None:
            if family == socket.AF_INET6 and refusal == errno.EAFNOSUPPORT:
                raise OSError(refusal, "no such family")
            super().__init__(family, *more, **named)

        def bind(self, address: Any) -> None:
            if self.family == socket.AF_INET6:
                raise OSError(refusal, "no such address")
            super().bind(address)

    return WithoutIpv6
