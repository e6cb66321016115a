"""The operator's file of callers: TOML, with tokens by their digests, certificates by their subjects, and quotas.

    [[tokens]]
    name = "invoices-api"                                  # who it is, for the log
    sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
    namespace = "billing"                                  # unset: the default namespace
    grants = [{ roles = ["producer", "watcher"], queues = ["invoices.*"] }]
    expires_at = 2027-01-01T00:00:00Z                      # unset: never

    [[certificates]]
    subject = "worker.billing.example"                     # a DNS name or URI of the certificate, or its common name
    namespace = "billing"
    grants = [{ roles = ["consumer"] }]                    # queues unset: all

    [namespaces.billing]
    max_messages = 1_000_000                               # and others, see `_Namespace`

The tokens themselves stand nowhere.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from headwayd.domain.access import NO_ROLE, CallerRole, Grant, Identity, Quotas
from headwayd.domain.namespaces import DEFAULT, refusal_of

RoleName = Literal["producer", "consumer", "watcher", "admin"]


def _check_namespace(name: str) -> str:
    if (reason := refusal_of(name)) is not None:
        raise ValueError(reason)
    return name


NamespaceName = Annotated[str, AfterValidator(_check_namespace)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class _Grant(_Part):
    roles: list[RoleName] = Field(min_length=1)
    queues: list[str] = Field(default=["*"], min_length=1)


class _Caller(_Part):
    namespace: NamespaceName = DEFAULT
    grants: list[_Grant] = Field(min_length=1)
    expires_at: AwareDatetime | None = None

    def identity(self, name: str) -> Identity:
        return Identity(
            name=name,
            namespace=self.namespace,
            grants=tuple(Grant(roles_of(grant.roles), tuple(grant.queues)) for grant in self.grants),
            expires_at=None if self.expires_at is None else self.expires_at.timestamp(),
        )


class _Token(_Caller):
    name: str = Field(min_length=1)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class _Certificate(_Caller):
    subject: str = Field(min_length=1)


class _Namespace(_Part):
    max_queues: int | None = Field(None, ge=0)
    max_messages: int | None = Field(None, ge=0)  # waiting, leased, delayed and dead ones together
    max_bytes: int | None = Field(None, ge=0)  # of the store's memory that messages take
    max_leases: int | None = Field(None, ge=0)
    max_streams: int | None = Field(None, ge=0)  # in one process
    max_calls_per_second: int | None = Field(None, ge=1)  # in one process


class _File(_Part):
    tokens: list[_Token] = []
    certificates: list[_Certificate] = []
    namespaces: dict[NamespaceName, _Namespace] = {}


@dataclass(frozen=True, slots=True)
class AuthFile:
    """What the file says. Digests are bytes."""

    tokens: Mapping[bytes, Identity] = field(default_factory=dict)
    certificates: Mapping[str, Identity] = field(default_factory=dict)
    quotas: Mapping[str, Quotas] = field(default_factory=dict)


def roles_of(names: Sequence[str]) -> CallerRole:
    """The roles with these names; others are no concern of ours."""
    roles = NO_ROLE
    for role in CallerRole:
        if role.name is not None and role.name.lower() in names:
            roles |= role
    return roles


def read(contents: Sequence[bytes]) -> AuthFile:
    """Raises ValueError, whose text says where, and quotes nothing of the file."""
    try:
        parsed = _File.model_validate(tomllib.loads(contents[0].decode()))
    except ValidationError as error:
        places = [".".join(map(str, one["loc"])) + ": " + one["msg"] for one in error.errors(include_input=False)]
        raise ValueError("; ".join(places)) from None
    tokens = {bytes.fromhex(token.sha256): token.identity(token.name) for token in parsed.tokens}
    certificates = {each.subject: each.identity(each.subject) for each in parsed.certificates}
    if len(tokens) < len(parsed.tokens):
        raise ValueError("tokens: two have the same sha256")
    if len(certificates) < len(parsed.certificates):
        raise ValueError("certificates: two have the same subject")
    quotas = {
        name: Quotas(
            queues=each.max_queues,
            messages=each.max_messages,
            bytes=each.max_bytes,
            leases=each.max_leases,
            streams=each.max_streams,
            calls_per_second=each.max_calls_per_second,
        )
        for name, each in parsed.namespaces.items()
    }
    return AuthFile(tokens, certificates, quotas)
