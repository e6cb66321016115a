"""The keys by which signed tokens are checked: a JWK set from a file, or from a URL.

A URL is asked at the start, from time to time, and when a token names a key that nobody knows, which is asked for at
most every half minute, whoever sends such tokens. Only these wait for it, and not more than some of them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jwt
import structlog
from cryptography.exceptions import UnsupportedAlgorithm

from headwayd.access.fetching import FetchFailed, fetched
from headwayd.access.watched import WatchedFiles

log: Any = structlog.get_logger(__name__)

_FETCH_TIMEOUT_S = 5.0  # for all of it
_FETCH_EVERY_S = 300.0
_FETCH_AGAIN_S = 30.0  # for an unknown key, and after a failure
_MOST_WAITING = 1_000  # for keys: anybody may send tokens of made-up ones
_ASYMMETRIC = ("RSA", "EC", "OKP")
_OF_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
# What of a key is not as it must be, or not known here, PyJWT tells in as many ways; older ones in more.
_UNUSABLE = (jwt.PyJWTError, TypeError, ValueError, NotImplementedError, UnsupportedAlgorithm)

Keys = dict[tuple[str, str], jwt.PyJWK]  # by id and algorithm


def _keys(document: object) -> Keys:
    """An id is "" where there is none. Keys that cannot check a public signature are left out."""
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("is no JWK set")  # noqa: TRY004 - what is wrong is the content
    found: Keys = {}
    for entry in entries:
        if isinstance(entry, dict) and entry.get("kty") in _ASYMMETRIC and entry.get("use", "sig") == "sig":
            try:
                for key in _for_each_algorithm(entry):
                    found[str(entry.get("kid", "")), key.algorithm_name] = key
            except _UNUSABLE:  # another service's
                continue
    if not found:
        raise ValueError("has no key to check a signature with")
    return found


def _for_each_algorithm(entry: dict[str, Any]) -> list[jwt.PyJWK]:
    """Only a key of RSA may be for several, if it names none; PyJWT takes it for one of RS256 then."""
    if entry["kty"] == "RSA" and not entry.get("alg"):
        return [jwt.PyJWK(entry, algorithm) for algorithm in _OF_RSA]
    return [jwt.PyJWK(entry)]


def _read(contents: Sequence[bytes]) -> Keys:
    return _keys(json.loads(contents[0]))


class KeyFile:
    """Keys from a file. Raises AccessFailed if it has none."""

    def __init__(self, path: Path) -> None:
        self._file = WatchedFiles((path,), _read)

    async def key(self, key_id: str, algorithm: str) -> jwt.PyJWK | None:
        """The key with this id for this algorithm; None if there is none."""
        return self._file.value.get((key_id, algorithm))

    @property
    def version(self) -> int:
        """Changes whenever the keys do."""
        return self._file.version

    async def refresh(self) -> None:
        """Reads the file again if it has changed."""
        self._file.refresh()


class KeyUrl:
    """Keys from a URL. None are known before the first `refresh`. `version` changes whenever the keys do, whoever had
    them fetched."""

    def __init__(self, url: str) -> None:
        self._url = url
        parts = urlsplit(url)
        self._shown = (
            f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"  # what is secret stands elsewhere
        )
        self.version = 0
        self._keys: Keys = {}
        self._fetched_at = float("-inf")  # tried, that is
        self._fetch_after_s = 0.0
        self._fetching: asyncio.Task[None] | None = None  # the fetch that is under way
        self._waiting_count = 0  # for it

    async def key(self, key_id: str, algorithm: str) -> jwt.PyJWK | None:
        """The key with this id for this algorithm; None if there is none. One that is not known may wait for the keys
        to be fetched."""
        if (key_id, algorithm) not in self._keys:
            is_under_way = self._fetching is not None and self._waiting_count < _MOST_WAITING
            if is_under_way or time.monotonic() - self._fetched_at > _FETCH_AGAIN_S:
                await self._fetch()
        return self._keys.get((key_id, algorithm))

    async def refresh(self) -> None:
        """Asks for the keys if they are old."""
        if time.monotonic() - self._fetched_at > self._fetch_after_s:
            await self._fetch()

    async def _fetch(self) -> None:
        """Or waits for the fetch that is under way. It goes on if whoever began it has gone: else who comes and goes
        could have the keys fetched at any time, or keep them from being so."""
        if self._fetching is None:
            self._fetched_at = time.monotonic()
            self._fetching = asyncio.create_task(self._fetch_now(), name="fetch of keys")
            self._fetching.add_done_callback(self._fetch_ended)
        self._waiting_count += 1
        try:
            await asyncio.shield(self._fetching)
        finally:
            self._waiting_count -= 1

    def _fetch_ended(self, _fetch: asyncio.Task[None]) -> None:
        self._fetching = None

    async def _fetch_now(self) -> None:
        self._fetch_after_s = _FETCH_AGAIN_S  # also where it fails in a way that nobody thought of
        try:
            keys = _read([await fetched(self._url, within_s=_FETCH_TIMEOUT_S)])
        except (FetchFailed, TimeoutError, ValueError, RecursionError) as error:
            why = str(error) or "it took too long"
            log.warning("the keys of signed tokens could not be fetched", url=self._shown, error=why)
            return
        self._fetch_after_s = _FETCH_EVERY_S
        self.version += _thumbprints(keys) != _thumbprints(self._keys)
        self._keys = keys


def _thumbprints(keys: Keys) -> dict[tuple[str, str], str]:
    return {name: json.dumps(key._jwk_data, sort_keys=True) for name, key in keys.items()}  # noqa: SLF001 - there is no public way to compare two
