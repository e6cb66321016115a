"""Sockets for the addresses on which the service listens: bound for this process, or held for several, so that they,
and nobody else, can listen there. Knows neither gRPC nor the HTTP server.

With SO_REUSEPORT the kernel spreads connections over all sockets that listen on an address, and lets any process of
the same user add one: a second service started by mistake would take a share of the first one's calls without a word.
So an address is first bound as if for oneself, which fails if anybody has it, and opened to sharing only then. What is
held does not listen: it gets no connection, keeps the address while workers come and go, and decides what port 0
becomes.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

_ALL = "::"


class CannotListen(OSError):
    """An address is none, or is taken, or is not this machine's."""


def not_to_be_had(address: str) -> CannotListen:
    """Why the system refuses it, as far as that can be told."""
    return CannotListen(f"cannot listen on {address}: taken, not an address of this machine, or not permitted")


def bound_at(
    address: str, bind: Callable[[socket.socket, tuple[object, ...]], None]
) -> tuple[list[socket.socket], str]:
    """Sockets on all addresses of the host ("HOST:PORT"), each bound by `bind`, and the address with its real port. A
    name may have several addresses; all get the port that the first one got. [::] is of both families, and 0.0.0.0
    where there is no IPv6. Raises CannotListen."""
    host, _, text = address.rpartition(":")
    port, bound = int(text), list[socket.socket]()
    with ExitStack() as opened:
        try:
            found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, kind, protocol, _, where in found:
                one = opened.enter_context(socket.socket(family, kind, protocol))
                if family == socket.AF_INET6:
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, where[0] != _ALL)
                try:
                    bind(one, (where[0], port, *where[2:]))
                except OSError as error:
                    if error.errno != errno.EADDRNOTAVAIL or family != socket.AF_INET6 or len(found) == 1:
                        raise
                    one.close()
                    continue  # localhost is ::1, too, also where there is no IPv6
                port = one.getsockname()[1]
                bound.append(one)
        except OSError as error:
            if host == f"[{_ALL}]" and error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                return bound_at(f"0.0.0.0:{text}", bind)
            raise not_to_be_had(address) from error
        opened.pop_all()  # they are the caller's
    return bound, f"{host}:{port}"


@contextmanager
def held(listen: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The addresses, with their real ports, which are this process's and its workers' in this block.

    Raises CannotListen if one is taken, or is not this machine's, or cannot be shared here.
    """
    if not hasattr(socket, "SO_REUSEPORT"):
        raise CannotListen("several workers cannot share an address on this system: set workers to 1")
    with ExitStack() as stack:
        yield tuple([_hold(address, stack, beside=[*listen]) for address in listen])


def _hold(address: str, stack: ExitStack, *, beside: Sequence[str]) -> str:
    host, _, port = address.rpartition(":")
    # Whoever names [::] and another address of the same port has IPv4, or what there is of it, held by that one.
    is_shared = (
        host == f"[{_ALL}]" and port != "0" and any(one != address and one.rpartition(":")[2] == port for one in beside)
    )
    sockets, real = bound_at(address, _bind_ipv6_alone if is_shared else _bind_alone)
    for one in sockets:
        stack.enter_context(one)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return real


def _bind_alone(one: socket.socket, where: tuple[object, ...]) -> None:
    try:
        one.bind(where)
    except OSError:
        # Connections of an earlier service that have just ended do not matter, and are in the way for a minute.
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(where)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)


def _bind_ipv6_alone(one: socket.socket, where: tuple[object, ...]) -> None:
    if one.family == socket.AF_INET6:
        one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    _bind_alone(one, where)
