"""Which messages of a stream of events have been told their end, as an event id: whoever comes back brings it along,
and the service need not remember anybody."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Sequence


class Ends:
    """Of the messages of one request. An event id is a hash of the queue and the ids in their order, a dot, and one bit
    for each of them. One that does not belong to this request says nothing."""

    def __init__(self, queue: str, ids: Sequence[str], last_event_id: str = "") -> None:
        self._ids = ids
        self._at = {each: at for at, each in enumerate(ids)}
        asked = json.dumps([queue, *ids]).encode()
        self._request = _text(hashlib.sha256(asked).digest()[:9])
        self._bits = _bits(last_event_id, self._request, (len(ids) + 7) // 8)

    @property
    def open_ids(self) -> list[str]:
        """Those whose end was not told yet."""
        return [each for at, each in enumerate(self._ids) if not self._bits[at // 8] >> at % 8 & 1]

    @property
    def event_id(self) -> str:
        """What was told until now."""
        return f"{self._request}.{_text(bytes(self._bits).rstrip(bytes(1)))}"

    def note(self, message_id: str) -> None:
        """Its end has been told."""
        at = self._at[message_id]
        self._bits[at // 8] |= 1 << at % 8


def _bits(event_id: str, request: str, size: int) -> bytearray:
    theirs, _, packed = event_id.partition(".")
    bits = bytearray(size)
    if theirs == request:
        try:
            told = base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return bits
        if len(told) <= size:
            bits[: len(told)] = told
    return bits


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
