"""The settings of who may call, and of how callers and the service prove who they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode

from headwayd.config.fields import setting

# Signatures that are checked with a public key. No others: whoever can check an HMAC can also make it.
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")


class SecuritySettings(BaseSettings):
    """A part of `Settings`."""

    tls_cert: Path | None = setting(
        None,
        "A PEM file with this service's certificate and those between it and its authority: connections to HOST:PORT "
        "addresses, gRPC and HTTP, are then TLS 1.2 or newer. Read again when it changes.",
        unit="path",
        shown="none",
    )
    tls_key: Path | None = setting(
        None, "A PEM file with the certificate's private key, without a password.", unit="path", shown="none"
    )
    tls_client_ca: Path | None = setting(
        None,
        "A PEM file with the authorities whose certificates clients must show; without a sound one there is no "
        "connection. Needs tls_cert.",
        unit="path",
        shown="none",
    )
    auth_file: Path | None = setting(
        None,
        "A TOML file with the callers, by tokens and certificates, what each may do, and the quotas of namespaces. "
        "Then nobody is served without credentials. Read again when it changes.",
        unit="path",
        shown="none",
    )
    jwt_jwks: str | None = setting(
        None,
        "The keys of signed bearer tokens (JWT), a JWK set: a file, or an http(s) URL. Then such tokens are taken, "
        "too. Needs jwt_issuer and jwt_audience.",
        unit="path or URL",
        shown="none",
    )
    jwt_issuer: str | None = setting(
        None, "Who must have issued a signed token (its claim `iss`).", shown="none", min_length=1
    )
    jwt_audience: str | None = setting(
        None, "Whom a signed token must be for (its claim `aud`).", shown="none", min_length=1
    )
    jwt_algorithms: Annotated[tuple[str, ...], NoDecode] = setting(
        ("RS256", "ES256", "EdDSA"),
        f"How a signed token may be signed: some of {', '.join(_ALGORITHMS)}. Several: commas.",
        unit="names",
    )
    jwt_roles_claim: str = setting(
        "roles",
        "The claim with the caller's roles: a list, or a text with blanks. Dots lead into objects.",
        unit="name",
        min_length=1,
    )
    jwt_namespace_claim: str = setting(
        "", "The claim with the caller's namespace; empty: all signed tokens are for the default one.", unit="name"
    )
    jwt_queues_claim: str = setting(
        "", "The claim with the patterns of the queues for which the roles hold; empty: all queues.", unit="name"
    )
    reflection: bool = setting(
        False, "Tell clients the schema (gRPC reflection), for tools; needs credentials if other calls do."
    )

    @field_validator("tls_cert", "tls_key", "tls_client_ca", "auth_file")
    @classmethod
    def _check_file(cls, path: Path | None) -> Path | None:
        if path == Path():
            raise ValueError("names no file")
        return path

    @field_validator("jwt_algorithms", mode="before")
    @classmethod
    def _split_algorithms(cls, value: object) -> object:
        texts = value.split(",") if isinstance(value, str) else value
        return [text.strip() for text in texts] if isinstance(texts, list | tuple) else texts

    @field_validator("jwt_algorithms")
    @classmethod
    def _check_algorithms(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names or (unknown := [name for name in names if name not in _ALGORITHMS]):
            raise ValueError(f"{unknown[0] if names else 'nothing'} is none of {', '.join(_ALGORITHMS)}")
        return names

    @field_validator("jwt_jwks")
    @classmethod
    def _check_jwks(cls, value: str | None) -> str | None:
        if value == "":
            raise ValueError("names no file")
        if value is not None and "://" in value:
            parts = urlsplit(value)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("must be a file, or a URL that begins with http:// or https://")
            if "@" in parts.netloc:
                raise ValueError("must name no user: it would not be sent")
        return value

    @model_validator(mode="after")
    def _check_security(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key go together: set both, or neither")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca needs tls_cert and tls_key: certificates are shown over TLS only")
        if self.jwt_jwks is not None and not (self.jwt_issuer and self.jwt_audience):
            raise ValueError("jwt_jwks needs jwt_issuer and jwt_audience, or tokens that are for others would be taken")
        return self

    @property
    def has_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.tls_cert is not None

    @property
    def has_auth(self) -> bool:
        """Whether calls need credentials of their own."""
        return self.auth_file is not None or self.jwt_jwks is not None

    @property
    def knows_callers(self) -> bool:
        """Whether callers prove who they are, by credentials or by a certificate, and nobody can listen in."""
        return self.has_tls and (self.has_auth or self.tls_client_ca is not None)
