"""Bearer tokens, as every call brings them along."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

# A token, or what gives the one of now: it is asked for each call.
Token = str | Callable[[], str]


def sendable(token: str) -> str:
    """The token itself. Raises ValueError, which does not tell it, if no header can hold it: gRPC would fail the call
    by an error of its insides.
    """
    if not (token.isascii() and token.isprintable()):
        raise ValueError("the token has a line break, or another character that is not printable ASCII")
    return token


class WithToken(Sequence[tuple[str, str]]):
    """Metadata with a token behind it. Each time that it is read the token is asked for anew."""

    def __init__(self, metadata: Sequence[tuple[str, str]], token: Token) -> None:
        self._metadata = tuple(metadata)
        self._token = sendable(token) if isinstance(token, str) else token

    def __iter__(self) -> Iterator[tuple[str, str]]:
        yield from self._metadata
        token = self._token if isinstance(self._token, str) else sendable(self._token())
        yield "authorization", f"Bearer {token}"

    def __len__(self) -> int:
        return len(self._metadata) + 1

    def __getitem__(self, index: int | slice) -> Any:
        return tuple(self)[index]

    def __repr__(self) -> str:
        return f"{self._metadata!r} and a token"  # which nobody need see
