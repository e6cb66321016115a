"""What the replies of a transaction through a gate mean."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ExecAbortError, NoPermissionError, NoScriptError, ReadOnlyError

from headwayd.domain.bare import BareMessages
from headwayd.domain.model import NewMessage
from headwayd.store.gates import Gate, Gates, Transaction
from headwayd.store.packing import Run, pack

BODIES = [b"x" * 500] * 100
COMMAND = (b"EVALSHA", b"sha", 2, "P:{q}", "P:{q}:x:never", "echo", "channels", "p", "p100", Run(BODIES))


def opened(messages: list[bytes] = BODIES) -> Gate | None:
    """The gate of a call that puts these."""
    return Gates().of("q", BareMessages(messages), Run(messages), "p")


def transaction() -> tuple[Gate, Transaction]:
    gate = opened()
    assert gate
    return gate, Transaction(gate, COMMAND)


def test_its_commands_are_those_of_one_slot_and_tell_the_payloads_once() -> None:
    _, one = transaction()
    words = [b"".join(pack(command)).split(b"\r\n")[2::2] for command in one.commands]
    called = [b"EVALSHA", b"sha", b"2", b"P:{q}", b"P:{q}:x:never", b"echo", b"channels", b"p"]
    assert words == [
        [b"MULTI"],
        [*called, b"g100"],
        [b"LPUSHX", b"P:{q}:x:gate", *BODIES],
        [*called, b"j100", b"50000"],
        [b"EXEC"],
    ]


QUEUED = [b"OK", b"QUEUED", b"QUEUED", b"QUEUED"]
DONE = [[b"echo", b"OK"], 100, [b"echo", b"OK", 1]]
OTHERS_SHUT = [b"another's echo", b"GATE_SHUT"]
READ_ONLY = ReadOnlyError("You can't write")
FULL = ExecAbortError("Transaction discarded because of: OOM command not allowed when used memory > 'maxmemory'.")
DENIED, UNKNOWN, ABORTED = (
    NoPermissionError("no permissions"),
    NoScriptError("No matching script"),
    ExecAbortError("no"),
)


@pytest.mark.parametrize(
    ("replies", "said", "is_undone", "is_shut", "is_forbidden"),
    [
        ([*QUEUED, DONE], [b"echo", b"OK", 1], False, False, False),
        ([*QUEUED, [[b"echo", b"GATE_SHUT"], 0, [b"echo", b"GATE_SHUT"]]], [b"echo", b"GATE_SHUT"], True, True, False),
        ([*QUEUED, [DENIED, 0, [b"echo", b"GATE_SHUT"]]], [b"echo", b"GATE_SHUT"], True, True, True),
        ([*QUEUED, [UNKNOWN, 0, UNKNOWN]], UNKNOWN, True, False, False),
        ([b"OK", b"QUEUED", DENIED, b"QUEUED", ABORTED], DENIED, True, False, True),
        ([b"OK", READ_ONLY, READ_ONLY, READ_ONLY, ABORTED], READ_ONLY, False, False, False),
        ([*QUEUED, FULL], FULL, False, False, False),
        ([*QUEUED, [b"another's"]], [b"another's"], False, False, False),
        ([*QUEUED, [OTHERS_SHUT, 0, OTHERS_SHUT]], OTHERS_SHUT, False, False, False),
    ],
    ids=[
        "done",
        "shut",
        "may not rename",
        "script unknown",
        "may not push",
        "replica",
        "full",
        "slipped",
        "slipped and shut",
    ],
)
def test_what_comes_back(replies: list[Any], said: object, is_undone: bool, is_shut: bool, is_forbidden: bool) -> None:
    gate, one = transaction()
    assert [one.take(reply) for reply in replies] == [None] * 4 + [said]
    assert (one.is_undone, gate.is_shut, one.is_forbidden) == (is_undone, is_shut, is_forbidden)


@pytest.mark.parametrize(
    ("messages", "is_worth_it"),
    [
        ([b"x" * 256] * 144, True),
        ([b"x" * 256] * 143, False),
        ([b"x" * 1_024] * 61, True),
        ([b""] * 267, True),
        ([b"x" * 100_000], True),
        ([], False),
    ],
    ids=lambda value: str(len(value)) if isinstance(value, list) else "",
)
def test_from_where_on_it_is_worth_it(messages: list[bytes], is_worth_it: bool) -> None:
    assert (opened(messages) is not None) == is_worth_it


def test_messages_that_are_more_than_payloads_have_none() -> None:
    messages = [NewMessage(body, id=str(number)) for number, body in enumerate(BODIES)]
    assert Gates().of("q", messages, Run(BODIES), "p") is None
