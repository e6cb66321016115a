"""Who calls: finds the caller of every call by what it brought along, and ends streams and waits whose caller may not
any more.

Finding out costs a digest of every token there is, or a signature, so who was found is remembered by what was shown: a
call costs a look into a table then. It is forgotten whenever the same credentials may have come to mean something else.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakValueDictionary

from grpc.aio import ServicerContext

from headwayd.domain.access import CallerRole, Identity
from headwayd.domain.calls import certificate_shown
from headwayd.domain.errors import HeadwayError, PermissionDenied, Unauthenticated
from headwayd.domain.namespaces import DEFAULT
from headwayd.domain.waiting import CutOff
from headwayd.engine.quotas import Quota
from headwayd.rpc.access_port import Access
from headwayd.rpc.cutting import may_be_cut_off
from headwayd.rpc.engine_port import Engine
from headwayd.rpc.status import abort

Context = ServicerContext[Any, Any]
# What serves a caller: of each call, by its path, a coroutine function or an async generator function.
Behaviours = Mapping[str, Callable[[Any, Context], Any]]

_HEADER = "authorization"
_SCHEME = "bearer"
CERTIFICATE = "x509_pem_cert"  # as gRPC has it in its auth context
_MOST_KNOWN = 10_000
_LONG = 128  # in a token: of a longer one, which its sender may have padded, a digest is remembered
_NEVER = float("inf")
_TURN_S = 0.01  # of the look at all who run: after it others have theirs
_ENDED_AT_ONCE = 20  # in such a turn: what an end costs is done by whoever is ended, behind it


class Running(Protocol):
    """What goes on for longer than credentials may hold."""

    def end(self, why: HeadwayError) -> None: ...


class Caller:
    """A caller as long as its credentials mean the same: who it is, and what serves it."""

    __slots__ = ("__weakref__", "behaviours", "expires_at", "identity", "quota")

    def __init__(self, identity: Identity, behaviours: Behaviours, quota: Quota) -> None:
        self.identity = identity
        self.behaviours = behaviours
        self.quota = quota
        self.expires_at = _NEVER if identity.expires_at is None else identity.expires_at


@dataclass(slots=True)
class _Shown:
    """What somebody who runs has shown, whom that meant, and the version of what says so by which it did when it was
    looked at last; None: it was not yet."""

    credentials: str | bytes
    caller: Caller
    version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarding:
    """What a guard needs: how callers are known, the engine as a caller sees it within the quota of its namespace, and
    such a quota, which is made once for each namespace."""

    access: Access
    engine_for: Callable[[Identity, Quota], Engine]
    quota_of: Callable[[str], Quota]


class Guard:
    """`serve` makes what serves a caller, of a view of the engine and the name of its namespace."""

    def __init__(self, guarding: Guarding, serve: Callable[[Engine, str], Behaviours]) -> None:
        self._access = guarding.access
        self._guarding = guarding
        self._serve = serve
        self._version = guarding.access.version
        self._callers: dict[str | bytes, Caller] = {}
        # One for all spellings of a token: it has much to it, and so many tokens hold as their sender likes to make.
        self._served: WeakValueDictionary[Identity, Caller] = WeakValueDictionary()
        self._quotas: dict[str, Quota] = {}
        self._running: dict[Running, _Shown] = {}

    async def caller(self, context: Context, *, is_settling: bool = False) -> Caller:
        """Who calls. Raises Unauthenticated, or QuotaExceeded if its namespace calls too often."""
        caller = await self._find(self._credentials(context))
        caller.quota.count_call(is_settling=is_settling)
        return caller

    async def is_operator(self, authorization: str) -> bool:
        """Whether these credentials, as a call would bring them along, or without any the certificate that was shown,
        may see what belongs to no namespace: an admin of all queues of the default namespace."""
        credentials: str | bytes = authorization
        if not credentials and self._access.takes_certificates:
            credentials = certificate_shown() or ""
        try:
            identity = (await self._find(credentials)).identity
        except HeadwayError:
            return False
        return identity.namespace == DEFAULT and bool(identity.roles_on_all("") & CallerRole.ADMIN)

    @contextlib.contextmanager
    def watching(self, running: Running, context: Context, caller: Caller) -> Iterator[None]:
        """Within this block the stream, or the wait, ends soon after its caller may not any more."""
        self._running[running] = _Shown(self._credentials(context), caller)
        try:
            yield
        finally:
            del self._running[running]

    @contextlib.contextmanager
    def watching_wait(self, context: Context, caller: Caller) -> Iterator[None]:
        """The same for a call that is served within this block, and may wait."""
        cut_off = CutOff()
        with self.watching(cut_off, context, caller), may_be_cut_off(cut_off):
            yield

    async def look_at_running(self) -> None:
        """Ends every stream and every wait whose credentials do not hold any more, or mean another caller, and forgets
        who has expired, and what was counted of namespaces that nobody is known of. To be called every few seconds.
        There may be thousands, and a signature for each to be checked, so others have their turns meanwhile."""
        now_s = time.time()
        for key in [key for key, caller in self._callers.items() if caller.expires_at <= now_s]:
            del self._callers[key]
        for namespace in self._quotas.keys() - {identity.namespace for identity in self._served}:
            if self._quotas[namespace].is_idle:
                del self._quotas[namespace]
        loop = asyncio.get_running_loop()
        turn_ends_at, ended = loop.time() + _TURN_S, 0
        for running, shown in tuple(self._running.items()):
            if ended >= _ENDED_AT_ONCE or loop.time() > turn_ends_at:
                await asyncio.sleep(0)
                turn_ends_at, ended = loop.time() + _TURN_S, 0
            is_known = shown.version == self._access.version and shown.caller.expires_at > time.time()
            if not is_known and running in self._running:
                ended += not await self._may_run_on(running, shown)

    async def _may_run_on(self, running: Running, shown: _Shown) -> bool:
        """Looks at one; if not, it has been ended."""
        version = self._access.version
        try:
            now = await self._find(shown.credentials)
        except HeadwayError as error:
            running.end(error)
            return False
        if now.identity != shown.caller.identity:
            running.end(PermissionDenied("what the caller may do has changed; ask again"))
            return False
        shown.version = version
        return True

    def _credentials(self, context: Context) -> str | bytes:
        for key, value in context.invocation_metadata() or ():
            if key == _HEADER:
                return value
        if self._access.takes_certificates:
            for pem in context.auth_context().get(CERTIFICATE, ()):
                return pem
        return ""

    async def _find(self, credentials: str | bytes) -> Caller:
        shown = _shown(credentials)
        key = shown if len(shown) <= _LONG else _digest(shown)
        caller = self._callers.get(key)
        if caller is not None and caller.expires_at > time.time() and self._version == self._access.version:
            return caller
        if self._version != self._access.version:
            self._forget()
        version = self._version
        identity = await self._identify(shown)
        caller = self._served.get(identity) or self._made(identity)
        if version == self._access.version:  # it was not found by what has changed meanwhile
            if len(self._callers) >= _MOST_KNOWN:
                del self._callers[next(iter(self._callers))]
            self._callers[key] = caller
        return caller

    def _made(self, identity: Identity) -> Caller:
        quota = self._quotas.get(identity.namespace)
        if quota is None:
            quota = self._quotas[identity.namespace] = self._guarding.quota_of(identity.namespace)
            quota.limits = self._access.quotas(identity.namespace)
        behaviours = self._serve(self._guarding.engine_for(identity, quota), identity.namespace)
        caller = self._served[identity] = Caller(identity, behaviours, quota)
        return caller

    def _forget(self) -> None:
        self._version = self._access.version
        self._callers.clear()
        for namespace, quota in self._quotas.items():
            quota.limits = self._access.quotas(namespace)

    async def _identify(self, shown: str | bytes) -> Identity:
        if isinstance(shown, bytes):
            return self._access.identify_certificate(shown)
        return await self._access.identify_token(shown)


def _shown(credentials: str | bytes) -> str | bytes:
    """The token, however it was written down, or the certificate. Raises Unauthenticated."""
    if isinstance(credentials, bytes):
        return credentials
    if not credentials:
        raise Unauthenticated("the call needs credentials: a bearer token in its metadata, authorization")
    scheme, _, token = credentials.partition(" ")
    token = token.strip()
    if scheme.lower() != _SCHEME or not token:
        raise Unauthenticated("the credentials are no bearer token")
    return token


def _digest(shown: str | bytes) -> bytes:
    data = shown if isinstance(shown, bytes) else shown.encode("utf-8", "surrogateescape")
    return hashlib.sha256(data).digest()


def guarded(handler: Callable[[Any, Context], Awaitable[None]], guard: Guard) -> Callable[..., Awaitable[None]]:
    """A stream of somebody else's making, for callers with credentials that hold."""

    async def handle(requests: Any, context: Context) -> None:
        try:
            await guard.caller(context)
        except HeadwayError as error:
            await abort(context, error)
        await handler(requests, context)

    return handle
