"""Addresses to listen on. Refuses what gRPC would quietly turn into something else.

gRPC listens on port 443 if an address has none, on another port than asked if it is above 65535, and removes the unix
socket of a process that is still serving.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from typing import TYPE_CHECKING

from headwayd.sockets import CannotListen, not_to_be_had

if TYPE_CHECKING:
    from grpc import ServerCredentials
    from grpc.aio import Server

UNIX_SCHEME = "unix:"
_MAX_UNIX_PATH_BYTES = 107  # sockaddr_un, without its final NUL
_PROBE_TIMEOUT_S = 1.0


async def bind(server: Server, address: str, credentials: ServerCredentials | None = None) -> str:
    """Binds `server` to "HOST:PORT" (port 0: any free one) or "unix:PATH"; the address with the real port. With
    `credentials` the former serves TLS; a socket of this machine does not need it.

    Raises CannotListen.
    """
    if address.startswith(UNIX_SCHEME):
        await _check_unix(address.removeprefix(UNIX_SCHEME), address)
        _add_port(server, address)
        return address
    host = checked(address).rpartition(":")[0]
    return f"{host}:{_add_port(server, address, credentials)}"


def checked(address: str) -> str:
    """The address, if it is written like one. Raises CannotListen."""
    if address.startswith(UNIX_SCHEME):
        return address
    host, colon, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and int(port) <= 65_535
    if not colon or not host or not is_port or (":" in host and not host.startswith("[")):
        raise CannotListen(f"cannot listen on {address}: must be HOST:PORT, [IPV6]:PORT or unix:PATH")
    return address


def _add_port(server: Server, address: str, credentials: ServerCredentials | None = None) -> int:
    try:
        if credentials is not None:
            return server.add_secure_port(address, credentials)
        return server.add_insecure_port(address)
    except RuntimeError as error:
        raise not_to_be_had(address) from error


async def _check_unix(path: str, address: str) -> None:
    """Raises CannotListen unless a socket can be made at `path`; one that nobody serves may be replaced."""
    if not path or len(path.encode()) > _MAX_UNIX_PATH_BYTES:
        raise CannotListen(f"cannot listen on {address}: the path must have 1 to {_MAX_UNIX_PATH_BYTES} bytes")
    kind = _kind_of(path)
    if kind is None:
        return
    if not stat.S_ISSOCK(kind):
        raise CannotListen(f"cannot listen on {address}: there is something that is no socket")
    with contextlib.suppress(ConnectionRefusedError):
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                _, writer = await asyncio.open_unix_connection(path)
        except TimeoutError:
            pass  # somebody has it, who does not answer
        else:
            writer.close()
        raise CannotListen(f"cannot listen on {address}: another process serves there")


def _kind_of(path: str) -> int | None:
    """The file type bits of what stands at `path`; None if nothing does."""
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except FileNotFoundError:
        return None
