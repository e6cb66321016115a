"""X-Queue text: whatever is written obeys the rules and reads back as it was; whatever is read, nothing breaks."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwayd.domain.hints import PollHints, poll_hints
from headwayd.domain.model import Policy
from headwayd.domain.xqueue import XQueue, format_xqueue, parse_xqueue

LARGEST = 2**31 - 1
KEYS = ("position", "length", "limit", "pollMin", "pollMax")
WRITTEN = re.compile(
    r"position=(0|[1-9]\d*),length=(0|[1-9]\d*),limit=(0|[1-9]\d*),pollMin=([1-9]\d*),pollMax=([1-9]\d*)", re.ASCII
)

anything = st.integers() | st.integers(-1, 1_000_000)
numbers = st.integers(0, LARGEST)
policies = st.builds(
    lambda base, more, per: Policy(poll_base_ms=base, poll_max_ms=min(base + more, 600_000), poll_per_position_ms=per),
    st.integers(10, 600_000),
    st.integers(0, 600_000),
    st.integers(0, 60_000),
)
cases: st.SearchStrategy[Callable[[str], str]] = st.sampled_from((str.lower, str.upper, str.title, str.swapcase, str))
blanks = st.text(" \t\r\n", max_size=2)
noise = st.one_of(
    st.text(max_size=20),
    st.text("=,positnlegmMaxf 0123456789-+_.\u0661\x00", max_size=40),
    st.sampled_from(
        ("", "=", "position", "xposition=9", "positions=9", "poll=9", "pollMinimum=9", "a=b=c", "=position")
    ),
)
values = st.one_of(
    numbers.map(str),
    st.sampled_from(
        ("", "-1", "+1", "1_0", "1.0", "0x1", "full", "FULL", "1 2", "\u0663", "9" * 19, "9" * 5_000, "12a")
    ),
)


@given(position=anything, length=anything, limit=anything, low=anything, high=anything)
@settings(max_examples=1_000)
def test_what_is_written_obeys_the_rules_whatever_the_numbers(
    position: int, length: int, limit: int, low: int, high: int
) -> None:
    match = WRITTEN.fullmatch(
        format_xqueue(position=position, length=length, limit=limit, hints=PollHints(poll_min_ms=low, poll_max_ms=high))
    )
    assert match
    place, long, slots, poll_min, poll_max = map(int, match.groups())
    assert place <= long <= LARGEST
    assert slots <= LARGEST
    assert poll_min >= 1
    assert poll_min + 8 <= poll_max <= 607


@given(position=numbers, more=numbers, limit=numbers, policy=policies, busy=st.floats(0, 1))
@settings(max_examples=1_000)
def test_whoever_keeps_to_the_text_keeps_to_the_hints(
    position: int, more: int, limit: int, policy: Policy, busy: float
) -> None:
    hints = poll_hints(policy, position, busy=busy)
    length = min(position + more, LARGEST)
    said = parse_xqueue(format_xqueue(position=position, length=length, limit=limit, hints=hints))
    assert (said.position, said.length, said.limit, said.is_full) == (position, length, limit, False)
    assert said.is_queued is (position > 0)
    assert said.poll_min_s is not None
    assert said.poll_max_s is not None
    assert hints.poll_min_ms <= said.poll_min_s * 1_000
    assert said.poll_max_s * 1_000 <= hints.poll_max_ms


@given(position=numbers, more=numbers, limit=numbers, low=st.integers(1, 599), wider=st.integers(8, 606))
def test_what_was_written_reads_back(position: int, more: int, limit: int, low: int, wider: int) -> None:
    said = XQueue(
        position=position,
        length=min(position + more, LARGEST),
        limit=limit,
        poll_min_s=low,
        poll_max_s=min(low + wider, 607),
    )
    assert said.length is not None
    assert said.poll_max_s is not None
    hints = PollHints(poll_min_ms=low * 1_000, poll_max_ms=said.poll_max_s * 1_000)
    assert parse_xqueue(format_xqueue(position=position, length=said.length, limit=limit, hints=hints)) == said


@given(st.lists(noise | st.text(), max_size=6))
@settings(max_examples=1_000)
def test_reading_never_raises(texts: list[str]) -> None:
    parse_xqueue(*texts)


@given(data=st.data())
@settings(max_examples=500)
def test_order_case_blanks_and_unknown_parts_do_not_matter(data: st.DataObject) -> None:
    pairs = {key: str(data.draw(numbers)) for key in data.draw(st.sets(st.sampled_from(KEYS)))}
    parts = [
        f"{data.draw(blanks)}{data.draw(cases)(key)}{data.draw(blanks)}={data.draw(blanks)}{value}{data.draw(blanks)}"
        for key, value in pairs.items()
    ]
    parts += [part for part in data.draw(st.lists(noise, max_size=4)) if not _mentions_a_key(part)]
    text = ",".join(data.draw(st.permutations(parts)))
    assert _numbers(parse_xqueue(text)) == [int(pairs[key]) if key in pairs else None for key in KEYS]


@given(mentions=st.lists(st.tuples(st.sampled_from(KEYS), values), max_size=8))
@settings(max_examples=500)
def test_the_first_mention_counts_and_a_bad_value_unsets_its_key_alone(mentions: list[tuple[str, str]]) -> None:
    first: dict[str, str] = {}
    for key, value in mentions:
        first.setdefault(key, value)
    said = parse_xqueue(",".join(f"{key}={value}" for key, value in mentions))
    good = {key: int(value) for key, value in first.items() if re.fullmatch("[0-9]{1,18}", value)}
    assert _numbers(said) == [good.get(key) for key in KEYS]
    assert said.is_full is (first.get("position", "").lower() == "full")


@given(parts=st.lists(st.tuples(st.sampled_from(KEYS), values).map("=".join) | noise, max_size=8), data=st.data())
@settings(max_examples=500)
def test_several_headers_read_as_one(parts: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(parts)), max_size=3)))
    headers = [parts[start:end] for start, end in zip([0, *cuts], [*cuts, len(parts)], strict=True)]
    assert parse_xqueue(*(",".join(header) for header in headers)) == parse_xqueue(",".join(parts))


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ((), XQueue()),
        (("",), XQueue()),
        (
            ("position=2,length=5,limit=4,pollMin=45,pollMax=120",),
            XQueue(position=2, length=5, limit=4, poll_min_s=45, poll_max_s=120),
        ),
        (("POLLMAX = 120 , pollmin=45",), XQueue(poll_min_s=45, poll_max_s=120)),
        (("position=full,length=5", "limit=4"), XQueue(length=5, limit=4, is_full=True)),
        (("Position= Full ",), XQueue(is_full=True)),
        (("position=1,position=full",), XQueue(position=1)),
        (("length=full",), XQueue()),
        (("position=2", "position=3,length=7", "pollMin=9"), XQueue(position=2, length=7, poll_min_s=9)),
        (("position=two,position=2,length=5",), XQueue(length=5)),
        (("position=007",), XQueue(position=7)),
        (("position",), XQueue()),
    ],
)
def test_examples(texts: tuple[str, ...], said: XQueue) -> None:
    assert parse_xqueue(*texts) == said


def test_whoever_is_at_no_place_or_at_a_full_one_is_not_queued() -> None:
    for text in ("position=full", "position=0", "length=4", ""):
        assert not parse_xqueue(text).is_queued
    assert parse_xqueue("position=1").is_queued


def _numbers(said: XQueue) -> list[int | None]:
    return [said.position, said.length, said.limit, said.poll_min_s, said.poll_max_s]


def _mentions_a_key(text: str) -> bool:
    """Whether a part of the text is, but for case and blanks, one of the keys and a value."""
    names = [part.partition("=")[0].strip().lower() for part in text.split(",")]
    return any(name in {key.lower() for key in KEYS} for name in names)
