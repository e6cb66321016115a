"""How many connections may shake hands at a time: TLS has its own part of a connection, before anybody hears of it."""

from __future__ import annotations

import asyncio
import ssl
from collections import OrderedDict
from typing import Any, Self


class TooManyHandshakes(ConnectionAbortedError):
    """The connection is closed without a word: there is nothing to tell it in."""


class Handshakes(ssl.SSLContext):
    """Connections begin with `inner`, unless `most` others are at it. For a server of asyncio's whose handshakes end
    after `within_s`, and who tells when one is `over`; one that failed counts for so long."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, inner: ssl.SSLContext, *, most: int, within_s: float) -> None:
        self._inner = inner
        self._most = most
        self.within_s = within_s
        self._begun = OrderedDict[int, float]()  # until when each may take

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """What asyncio begins a connection with."""
        now = asyncio.get_running_loop().time()
        while self._begun and next(iter(self._begun.values())) <= now:
            self._begun.popitem(last=False)
        if len(self._begun) >= self._most:
            raise TooManyHandshakes(f"{self._most} others shake hands")
        tls = self._inner.wrap_bio(*args, **options)
        self._begun.pop(id(tls), None)  # of one that failed
        self._begun[id(tls)] = now + self.within_s
        return tls

    def over(self, tls: ssl.SSLObject) -> None:
        """This one's handshake has succeeded."""
        self._begun.pop(id(tls), None)
