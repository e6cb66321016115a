"""Holds addresses on which several processes are to listen, so that they, and nobody else, can. Knows no gRPC.

With SO_REUSEPORT the kernel spreads connections over all sockets that listen on an address, and lets any process of
the same user add one: a second service started by mistake would take a share of the first one's calls without a word.
So an address is first bound as if for oneself, which fails if anybody has it, and opened to sharing only then. What is
held does not listen: it gets no connection, keeps the address while workers come and go, and decides what port 0
becomes.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from headwayd.rpc.listening import CannotListen


@contextmanager
def held(listen: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The addresses ("HOST:PORT"), with their real ports, which are this process's and its workers' in this block; for
    [::] 0.0.0.0 where there is no IPv6.

    Raises CannotListen if one is taken, or is not this machine's, or cannot be shared here.
    """
    if not hasattr(socket, "SO_REUSEPORT"):
        raise CannotListen("several workers cannot share an address on this system: set workers to 1")
    with ExitStack() as stack:
        yield tuple([_hold(address, stack) for address in listen])


def _hold(address: str, stack: ExitStack) -> str:
    host, _, text = address.rpartition(":")
    port = int(text)
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # A name may have several addresses; all get the port that the first one got.
        for family, kind, protocol, _, where in found:
            one = stack.enter_context(socket.socket(family, kind, protocol))
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                _bind(one, (where[0], port, *where[2:]))
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL or family != socket.AF_INET6 or len(found) == 1:
                    raise
                continue  # localhost is ::1, too, also where there is no IPv6
            port = one.getsockname()[1]
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except OSError as error:
        if host == "[::]" and error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            return _hold(f"0.0.0.0:{text}", stack)  # as a port of one process, where there is no IPv6
        raise CannotListen(
            f"cannot listen on {address}: taken, not an address of this machine, or not permitted"
        ) from error
    return f"{host}:{port}"


def _bind(one: socket.socket, where: tuple[object, ...]) -> None:
    try:
        one.bind(where)
    except OSError:
        # Connections of an earlier service that have just ended do not matter, and are in the way for a minute.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(where)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
