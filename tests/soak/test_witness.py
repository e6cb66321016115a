"""The witnesses of the soak see what must never be: written into the store here by hand."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator

import pytest
import redis

from harness import StoreServer
from soak.witness import LeaseLog, sample

STEP = bytes([7, 10, 34, 92]) * 4  # as MONITOR writes them: escaped in all its ways


class Store:
    """Writes leases as scripts do, from a script."""

    def __init__(self, raw: redis.Redis, base: str) -> None:
        self.raw = raw
        self.base = base

    def do(self, *command: str | bytes) -> None:
        """One command, done by a script."""
        self.raw.eval("return redis.call(unpack(ARGV))", 0, *command)

    def lease(self, ticket: str, nonce: int, message: bytes) -> None:
        """Everything that is kept of a lease."""
        record = struct.pack(">IQBI20sH", 0, 0, 0, 0, bytes([nonce]) * 20, 0)
        self.do("ZADD", f"{self.base}:x:leases", "1", ticket)
        self.do("HSET", f"{self.base}:x:lease", ticket, record)
        self.do("HSET", f"{self.base}:x:body", ticket, b'\xf5"\n\\' + message)

    def end(self, ticket: str) -> None:
        """Nothing is kept of it."""
        self.do("ZREM", f"{self.base}:x:leases", ticket)
        for kind in ("lease", "body"):
            self.do("HDEL", f"{self.base}:x:{kind}", ticket)

    def tie(self, first: int, *messages: bytes, settled: int = 0) -> None:
        """Everything that is kept of a bundle; `settled` is its bits. None is left out: nothing is kept of it."""
        count, when, key = len(messages), b"%d 1700000000000" % len(messages), f"{self.base}:x:bundle"
        left = count - settled.bit_count()
        if left == 0:
            self.do("HDEL", key, b"h" + STEP, b"b" + STEP)
            return
        head = struct.pack(">QIIH", first, count, left, len(when)) + when + bytes([settled])
        fields = [b"h" + STEP, head + bytes([0, 0, 0, 1, 0, 0])]
        if not settled:
            fields += [
                b"b" + STEP,
                bytes([0x90 + count, *b"".join(bytes([0xA0 + len(one)]) + one for one in messages)]),
            ]
        self.do("HSET", key, *fields)


@pytest.fixture
def store(store_server: StoreServer) -> Iterator[Store]:
    with store_server.client() as raw:
        made = Store(raw, f"witness:{uuid.uuid4().hex}")
        yield made
        raw.delete(*(f"{made.base}:x:{kind}" for kind in ("leases", "lease", "body", "bundle")), made.base)


@pytest.fixture
def log(store_server: StoreServer, store: Store) -> LeaseLog:
    return LeaseLog(store_server.port, store.base)


def test_one_lease_after_the_other_is_fine(store: Store, log: LeaseLog) -> None:
    for nonce in (1, 10, 34, 92, 200):  # as MONITOR writes them: escaped in all its ways
        store.lease("7", nonce, b"p0-1")
        store.lease("7", nonce, b"p0-1")  # extended
        store.end("7")
    log.finish(store.raw)
    assert (log.wrong, log.granted, log.out, log.most_out) == ([], 5, 0, 1)


def test_a_bundle_that_is_acked_and_untied_is_fine(store: Store, log: LeaseLog) -> None:
    store.tie(7, b"p0-1", b"p0-2", b"p0-3")
    assert len(sample(store.raw, store.base).leased) == 3
    store.tie(7, b"p0-1", b"p0-2", b"p0-3", settled=0b010)
    assert sample(store.raw, store.base).leased == [b"p0-1", b"p0-3"]
    assert sample(store.raw, store.base).wrong(with_totals=False) == []
    store.tie(7, b"p0-1", b"p0-2", b"p0-3", settled=0b111)
    log.finish(store.raw)
    assert (log.wrong, log.granted, log.out, log.most_out) == ([], 3, 0, 3)


def test_a_second_lease_of_what_is_in_a_bundle_is_seen(store: Store, log: LeaseLog) -> None:
    store.tie(7, b"p0-1", b"p0-2")
    store.lease("8", 1, b"p0-2")
    log.finish(store.raw)
    assert len(log.wrong) == 1


def test_a_message_that_waits_and_is_in_a_bundle_is_seen(store: Store) -> None:
    store.tie(7, b"p0-1", b"p0-2")
    store.raw.lpush(store.base, b"p0-2")
    assert len(sample(store.raw, store.base).wrong(with_totals=False)) == 1


def test_a_second_lease_on_a_ticket_is_seen(store: Store, log: LeaseLog) -> None:
    store.lease("7", 1, b"p0-1")
    store.lease("7", 2, b"p0-1")
    log.finish(store.raw)
    assert len(log.wrong) == 1
    assert log.out > 0


def test_a_message_leased_under_two_tickets_is_seen_by_both_witnesses(store: Store, log: LeaseLog) -> None:
    store.lease("7", 1, b"p0-1")
    store.lease("8", 2, b"p0-1")
    log.finish(store.raw)
    assert len(log.wrong) == 1
    assert len(sample(store.raw, store.base).wrong(with_totals=False)) == 1


def test_a_message_that_waits_and_is_leased_is_seen(store: Store) -> None:
    store.lease("7", 1, b"p0-1")
    store.raw.lpush(store.base, b"p0-1")
    assert len(sample(store.raw, store.base).wrong(with_totals=False)) == 1


def test_totals_that_do_not_add_up_are_seen(store: Store) -> None:
    store.lease("7", 1, b"p0-1")
    assert len(sample(store.raw, store.base).wrong(with_totals=True)) == 1
