"""What MONITOR says of a service's steps becomes the commands that they were, in the order in which they were done."""

from __future__ import annotations

from bench.store_alone import asked, steps
from headwayd.store.scripts import all_scripts

ONE, OTHER = b"127.0.0.1:4001", b"127.0.0.1:4002"
CREATE, PUT, GET, PEEK = (all_scripts()[name].sha for name in ("create", "put", "get", "peek"))
ASKS, TELLS = [b"EVALSHA", PUT, b"1", b"q", b"g2"], [b"EVALSHA", PUT, b"1", b"q", b"j2"]


def said(who: bytes, *words: bytes) -> bytes:
    return b"+1764500000.123456 [0 %s] %s\r\n" % (who, b" ".join(b'"%s"' % word for word in words))


def test_a_transaction_stands_where_it_was_carried_out() -> None:
    log = b"+OK\r\n" + b"".join(
        [
            said(OTHER, b"EVALSHA", CREATE, b"1", b"q"),
            said(ONE, b"MULTI"),
            said(OTHER, b"EVALSHA", PUT, b"1", b"q", b"p1", b"early"),
            said(ONE, *ASKS),
            said(b"lua", b"LLEN", b"q"),
            said(ONE, b"LPUSHX", b"q:x:gate", b"some", b"more"),
            said(ONE, *TELLS),
            said(ONE, b"EXEC"),
            said(OTHER, b"EVALSHA", GET, b"1", b"q"),
        ]
    )
    calls = asked(log)
    assert calls == [
        [b"EVALSHA", CREATE, b"1", b"q"],
        [b"EVALSHA", PUT, b"1", b"q", b"p1", b"early"],
        [b"MULTI"],
        ASKS,
        [b"LPUSHX", b"q:x:gate", b"some", b"more"],
        TELLS,
        [b"EXEC"],
        [b"EVALSHA", GET, b"1", b"q"],
    ]
    assert steps(calls) == 3


def test_what_is_no_step_of_a_message_is_left_out() -> None:
    log = said(ONE, b"PING") + said(ONE, b"EVALSHA", PEEK, b"1", b"q") + said(b"lua", b"EVALSHA", PUT) + b"+OK\r\n"
    assert asked(log) == []


def test_bytes_are_what_they_were() -> None:
    log = said(ONE, b"EVALSHA", PUT, b"1", b"q", rb"\x00\xff\r\n\a\b\t", rb"\"'\\", b"", b"a b] c")
    assert asked(log) == [[b"EVALSHA", PUT, b"1", b"q", b"\x00\xff\r\n\a\b\t", b"\"'\\", b"", b"a b] c"]]
