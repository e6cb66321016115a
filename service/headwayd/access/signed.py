"""Signed tokens (JWT): who they are from and for, how long they hold, and what their claims say of the caller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import jwt

from headwayd.access.auth_file import roles_of
from headwayd.domain.access import Grant, Identity
from headwayd.domain.errors import Unauthenticated
from headwayd.domain.namespaces import DEFAULT, refusal_of

_LEEWAY_S = 10  # what clocks of different machines may differ by
_MAX_BYTES = 8_192


class Keys(Protocol):
    """Where keys come from."""

    @property
    def version(self) -> int: ...

    async def key(self, key_id: str, algorithm: str) -> jwt.PyJWK | None: ...

    async def refresh(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedRules:
    """What a signed token must be. A claim's name may be a path through objects, with dots. `namespace_claim` "": every
    token is for the default namespace; `queues_claim` "": for all queues."""

    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    roles_claim: str
    namespace_claim: str = ""
    queues_claim: str = ""


class SignedTokens:
    """Checks signed tokens. Why one is refused is told to nobody but its caller, and quotes nothing of it."""

    def __init__(self, rules: SignedRules, keys: Keys) -> None:
        self._rules = rules
        self._keys = keys

    @property
    def version(self) -> int:
        """Changes whenever tokens must be checked anew."""
        return self._keys.version

    async def refresh(self) -> None:
        """Looks for other keys."""
        await self._keys.refresh()

    async def identify(self, token: str) -> Identity:
        """Whose token it is. Raises Unauthenticated."""
        rules = self._rules
        if len(token) > _MAX_BYTES:
            raise Unauthenticated("the token is too long")
        try:
            head = jwt.get_unverified_header(token)
            key = await self._keys.key(head.get("kid", ""), head.get("alg", ""))
            if key is None:
                raise Unauthenticated("the token is signed with a key that is not known, or not for its algorithm")
            claims = jwt.decode(
                token,
                key,
                algorithms=list(rules.algorithms),
                audience=rules.audience,
                issuer=rules.issuer,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "iss", "aud"]},
            )
            expires_at = float(claims["exp"]) + _LEEWAY_S
        except jwt.ExpiredSignatureError:
            raise Unauthenticated("the token has expired") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError) as error:
            raise Unauthenticated(f"the token does not hold: {type(error).__name__}") from None
        return Identity(
            name=str(claims.get("sub", "")),
            namespace=self._namespace(claims),
            grants=(Grant(roles_of(_texts(claims, rules.roles_claim)), self._queues(claims)),),
            expires_at=expires_at,
        )

    def _namespace(self, claims: dict[str, Any]) -> str:
        if not self._rules.namespace_claim:
            return DEFAULT
        names = _texts(claims, self._rules.namespace_claim)
        if len(names) != 1 or refusal_of(names[0]) is not None:
            raise Unauthenticated("the token does not name one namespace")
        return names[0]

    def _queues(self, claims: dict[str, Any]) -> tuple[str, ...]:
        return tuple(_texts(claims, self._rules.queues_claim)) if self._rules.queues_claim else ("*",)


def _texts(claims: dict[str, Any], path: str) -> list[str]:
    """A claim that is a text or a list of texts; nothing if it is missing or something else. A text may be several,
    with blanks between, as OAuth's scopes are."""
    found: Any = claims.get(path)
    if found is None:
        found = claims
        for step in path.split("."):
            found = found.get(step) if isinstance(found, dict) else None
    if isinstance(found, str):
        return found.split()
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []
