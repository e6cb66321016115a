"""Puts together who may call: what the settings name is read, and read again when it changes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

import structlog

from headwayd.access.tls import TlsFiles
from headwayd.config.settings import Settings
from headwayd.domain.access import Used
from headwayd.engine.engine import Engine
from headwayd.engine.guarded import GuardedEngine
from headwayd.engine.quotas import Quota
from headwayd.rpc.guard import Guarding

if TYPE_CHECKING:
    from headwayd.access.access import Access
    from headwayd.access.signed import SignedTokens

log: Any = structlog.get_logger(__name__)

# Streams notice expired or revoked credentials after this, and after what it takes to look at all of them, which may
# have to fetch a key now and then; a minute is promised.
_LOOK_EVERY_S: Final = 2.0
_LOOK_BUDGET_S: Final = 20.0  # goes through all keys of the store; calls wait for it within their own time


class Security:
    """`start` it before the server, which needs `tls` and `guarding`; None = no TLS, and callers are not known."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self._settings = settings
        self._engine = engine
        self._access: Access | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._quotas: WeakSet[Quota] = WeakSet()
        self._look: Callable[[], Awaitable[None]] | None = None
        self.tls: TlsFiles | None = None
        self.guarding: Guarding | None = None

    async def start(self) -> None:
        """Reads all files. Raises AccessFailed."""
        settings = self._settings
        if settings.tls_cert is not None and settings.tls_key is not None:
            self.tls = TlsFiles(cert=settings.tls_cert, key=settings.tls_key, client_ca=settings.tls_client_ca)
        if settings.has_auth:
            from headwayd.access.access import Access  # noqa: PLC0415 - loads cryptography, which only this needs

            self._access = Access(file=settings.auth_file, signed=_signed(settings))
            self.guarding = Guarding(
                access=self._access,
                engine_for=lambda identity, quota: GuardedEngine(self._engine, identity, quota),
                quota_of=self._quota_of,
            )
        if self.tls is not None or self._access is not None:
            self._tasks.append(asyncio.create_task(_keep_doing(self._look_at_files), name="security"))
        if self._access is not None:
            # By itself: keys that come slowly must keep nobody from hearing that a token was taken back.
            self._tasks.append(asyncio.create_task(_keep_doing(self._access.refresh_keys), name="keys"))

    @property
    def http_context(self) -> ssl.SSLContext | None:
        """TLS for the HTTP port; None if there is none."""
        return None if self.tls is None else self.tls.context()

    def on_look(self, look: Callable[[], Awaitable[None]]) -> None:
        """What is called after every look at the files."""
        self._look = look

    async def stop(self) -> None:
        """Looks no more, neither at files nor at what namespaces have."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks.clear()
        for quota in tuple(self._quotas):
            await quota.close()

    def _quota_of(self, namespace: str) -> Quota:
        async def look(with_bytes: bool) -> Used:
            return await self._engine.used(namespace, with_bytes=with_bytes, budget_s=_LOOK_BUDGET_S)

        quota = Quota(look)
        self._quotas.add(quota)
        return quota

    async def _look_at_files(self) -> None:
        if self.tls is not None:
            self.tls.refresh()
        if self._access is not None:
            self._access.refresh()
        if self._look is not None:
            await self._look()


async def _keep_doing(look: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await look()
        except Exception:  # loop guard: what was read stays in force
            log.exception("could not look at what says who may call")
        await asyncio.sleep(_LOOK_EVERY_S)


def _signed(settings: Settings) -> SignedTokens | None:
    place = settings.jwt_jwks
    if place is None:
        return None
    from headwayd.access.jwks import KeyFile, KeyUrl  # noqa: PLC0415 - load PyJWT, which only this needs
    from headwayd.access.signed import SignedRules, SignedTokens  # noqa: PLC0415

    rules = SignedRules(
        issuer=settings.jwt_issuer or "",
        audience=settings.jwt_audience or "",
        algorithms=settings.jwt_algorithms,
        roles_claim=settings.jwt_roles_claim,
        namespace_claim=settings.jwt_namespace_claim,
        queues_claim=settings.jwt_queues_claim,
    )
    return SignedTokens(rules, KeyUrl(place) if "://" in place else KeyFile(Path(place)))
