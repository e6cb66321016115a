"""Callers with tokens, and the file that knows them."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import grpc

from harness import eventually
from headway.v1 import admin_service_pb2_grpc, queue_service_pb2_grpc
from wire.calls import Line

Metadata = tuple[tuple[str, str], ...]
_SHORT_LIFE_S = 8  # the service reads a file that has changed within 2 s


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Somebody with a token. `expires_at` as TOML writes it."""

    roles: tuple[str, ...]
    namespace: str = "default"
    queues: tuple[str, ...] = ("*",)
    expires_at: str = ""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def metadata(self) -> Metadata:
        """What its calls bring along."""
        return bearer(self.token)

    @property
    def entry(self) -> str:
        """What the file says of it."""
        digest = hashlib.sha256(self.token.encode()).hexdigest()
        expires = f"expires_at = {self.expires_at}\n" if self.expires_at else ""
        return (
            f'[[tokens]]\nname = "{"-".join(self.roles)} of {self.namespace}"\nsha256 = "{digest}"\n'
            f'namespace = "{self.namespace}"\n{expires}'
            f"grants = [{{ roles = {list(self.roles)}, queues = {list(self.queues)} }}]\n"
        )


def bearer(token: str) -> Metadata:
    """A token as calls bring it along."""
    return (("authorization", f"Bearer {token}"),)


ROLES = ("producer", "consumer", "watcher", "admin")
EXPIRED = Caller(roles=("admin",), namespace="team", expires_at="2020-01-01T00:00:00Z")
TEAM = {role: Caller(roles=(role,), namespace="team") for role in ROLES}
OTHERS = {role: Caller(roles=(role,), namespace="others") for role in ROLES}
PLAIN = {role: Caller(roles=(role,)) for role in ROLES}  # of the default namespace


def write_callers(path: Path, callers: Iterable[Caller], quotas: Mapping[str, Mapping[str, int]] | None = None) -> Path:
    """The file of these callers, replaced as a whole."""
    text = "\n".join(caller.entry for caller in callers)
    for namespace, numbers in (quotas or {}).items():
        text += f"\n[namespaces.{namespace}]\n" + "".join(f"{name} = {most}\n" for name, most in numbers.items())
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)
    return path


class AsCaller:
    """A channel of one caller: every call brings its token along."""

    def __init__(self, channel: grpc.aio.Channel, caller: Caller) -> None:
        self._channel = channel
        self._metadata = caller.metadata

    def _with_token(self, kind: str, *arguments: object, **options: object) -> object:
        call = getattr(self._channel, kind)(*arguments, **options)
        return lambda *given, **named: call(*given, **{"metadata": self._metadata} | named)

    def unary_unary(self, *arguments: object, **options: object) -> object:
        """As a channel's."""
        return self._with_token("unary_unary", *arguments, **options)

    def unary_stream(self, *arguments: object, **options: object) -> object:
        """As a channel's."""
        return self._with_token("unary_stream", *arguments, **options)

    def stream_unary(self, *arguments: object, **options: object) -> object:
        """As a channel's."""
        return self._with_token("stream_unary", *arguments, **options)

    def stream_stream(self, *arguments: object, **options: object) -> object:
        """As a channel's."""
        return self._with_token("stream_stream", *arguments, **options)


async def short_lived(path: Path, others: Iterable[Caller], line: Line, channel: grpc.aio.Channel) -> Caller:
    """An admin of the namespace team with some seconds to live from now on, and known by now: to be asked for when
    everything is there that takes time. The file is the one that the service reads."""
    expires = datetime.fromtimestamp(time.time() + _SHORT_LIFE_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    caller = Caller(roles=("admin",), namespace="team", expires_at=expires)
    write_callers(path, [*others, caller])
    await known(channel, caller)
    return caller


async def known(channel: grpc.aio.Channel, caller: Caller) -> None:
    """Waits until the service has read of this caller."""

    async def is_known() -> bool:
        try:
            await line_of(channel, caller, "none").describe()
        except grpc.aio.AioRpcError as error:
            return error.code() is grpc.StatusCode.NOT_FOUND  # so it was let in
        return True

    await eventually(is_known, within=_SHORT_LIFE_S)


def line_of(channel: grpc.aio.Channel, caller: Caller, name: str) -> Line:
    """A queue as this caller sees it."""
    own: grpc.aio.Channel = AsCaller(channel, caller)  # type: ignore[assignment]
    return Line(queue_service_pb2_grpc.QueueServiceStub(own), name, admin_service_pb2_grpc.AdminServiceStub(own))
