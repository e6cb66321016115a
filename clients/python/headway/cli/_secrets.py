"""How the command line shows who it is, and knows whom it talks to."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc

from headway._tokens import Token, sendable

# Never a flag: flags are seen by everybody on the machine.
TOKEN_VARIABLE = "HEADWAY_TOKEN"  # noqa: S105 - a name
_SYSTEM = "system"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """What the global options said of it. Files are read when they are needed; OSError tells what is wrong with one."""

    ca: str | None
    cert: Path | None
    key: Path | None
    token_file: Path | None

    def credentials(self) -> grpc.ChannelCredentials | None:
        """TLS, if any of its files is named; None for plain text. Raises ValueError for a certificate without key."""
        if (self.cert is None) != (self.key is None):
            raise ValueError("--cert and --key go together")
        if self.ca is None and self.cert is None:
            return None
        roots = None if self.ca in (None, _SYSTEM) else Path(self.ca or "").read_bytes()
        if self.cert is None or self.key is None:
            return grpc.ssl_channel_credentials(roots)
        return grpc.ssl_channel_credentials(roots, self.key.read_bytes(), self.cert.read_bytes())

    def token(self) -> Token | None:
        """The bearer token, if there is one; a file is read for each call, so that it may be renewed."""
        if (file := self.token_file) is not None:
            last = file.read_text()  # one that cannot be read is told at once

            def token() -> str:
                """That of now; while the file cannot be read, as it is replaced, the one of before."""
                nonlocal last
                with suppress(OSError, UnicodeDecodeError):
                    last = file.read_text() or last
                return last.strip()

            return token
        return sendable(os.environ.get(TOKEN_VARIABLE, "").strip()) or None
