"""What a service with TLS and known callers is told, and what its clients show: certificates and tokens, in files."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from security.authority import Authority, trusting
from security.callers import TEAM, Caller, known, write_callers

NAMESPACE = "small"  # where an admin may have one queue
BRIEF = timedelta(seconds=8)  # the life of a token that expires; the service reads a file that has changed within 2 s
KNOWN, UNKNOWN = "worker.example", "nobody.example"  # names of certificates
_OF_CERTIFICATE = f"""
[[certificates]]
subject = "{KNOWN}"
namespace = "team"
grants = [{{ roles = ["admin"] }}]
"""


class Credentials:
    """One authority, one service, and its callers: each role of a team, an admin with a quota, and a certificate."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count(1)
        self._tokens = TEAM | {NAMESPACE: Caller(roles=("admin",), namespace=NAMESPACE)}
        authority, stranger = Authority(), Authority()
        self._write_callers()
        self._trusting = trusting(authority, authority.client(UNKNOWN))
        self.settings = authority.write_server(folder) | {
            "HEADWAY_TLS_CLIENT_CA": authority.write(folder),
            "HEADWAY_AUTH_FILE": str(folder / "callers.toml"),
        }
        # What scenarios name: authorities, certificates with their keys, and a token that nobody knows.
        self.files = {
            "ca": str(folder / "ca.pem"),
            "other_ca": self._write("other-ca.pem", stranger.pem),
            "unknown.token": self._write("unknown-token", b"unknown\n"),
            **self._issue("unknown", authority.client(UNKNOWN)),
            **self._issue("known", authority.client(KNOWN)),
        }

    def options(self) -> dict[str, str]:
        """What a client connects with: a certificate that says nothing, and an admin's token in a file of its own."""
        shown = {"ca": self.files["ca"], "cert": self.files["unknown.cert"], "key": self.files["unknown.key"]}
        path = self._folder / f"token{next(self._numbers)}"
        self.give(path, "admin")
        return shown | {"token_file": str(path)}

    def give(self, path: Path, caller: str) -> None:
        """Another caller's token into the file."""
        new = path.with_suffix(".new")
        new.write_text(self._tokens[caller].token + "\n")
        new.replace(path)

    async def give_brief(self, path: Path, address: str) -> None:
        """The token of an admin into the file who has some seconds to live from now on, and is known by now."""
        name = f"brief{next(self._numbers)}"
        expires = datetime.now(UTC) + BRIEF
        self._tokens[name] = Caller(roles=("admin",), namespace="team", expires_at=f"{expires:%Y-%m-%dT%H:%M:%SZ}")
        self._write_callers()
        async with grpc.aio.secure_channel(address, self._trusting) as channel:
            await known(channel, self._tokens[name])
        self.give(path, name)

    def _write_callers(self) -> None:
        callers = write_callers(self._folder / "callers.toml", self._tokens.values(), {NAMESPACE: {"max_queues": 1}})
        callers.write_text(callers.read_text() + _OF_CERTIFICATE)

    def _issue(self, name: str, issued: trustme.LeafCert) -> dict[str, str]:
        # As PKCS #8, which is all that Java reads.
        key = load_pem_private_key(issued.private_key_pem.bytes(), password=None)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        chain = b"".join(each.bytes() for each in issued.cert_chain_pems)
        return {
            f"{name}.cert": self._write(f"{name}.pem", chain),
            f"{name}.key": self._write(f"{name}-key.pem", pem),
        }

    def _write(self, name: str, pem: bytes) -> str:
        (self._folder / name).write_bytes(pem)
        return str(self._folder / name)
