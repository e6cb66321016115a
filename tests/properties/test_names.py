"""Names cannot collide or escape: whatever two names are accepted, no key of one is a key of the other."""

from __future__ import annotations

import unicodedata
from itertools import combinations

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from headwayd.domain.errors import NameRefused
from headwayd.domain.names import accept, refusal_of
from headwayd.store import keys
from properties.hostile import (
    COLLIDING,
    IMPROPER,
    OLD_SUFFIXES,
    OWN_SEGMENT,
    PRESSURE_SUFFIXES,
    PROPER_AND_HARMLESS,
    RESERVED_SUFFIXES,
    SEGMENTS,
    do_collide,
    own_region,
    shorter_names,
    small_names,
)

MAX_NAME_BYTES = 200

characters = st.one_of(
    st.sampled_from("abx:{}*?[]\\^ \0\r\n\t\x7f\x85\u200f\u202e\u2028é\U0001f422"),
    st.characters(exclude_categories=["Cs"]),
)
segments = st.one_of(
    st.sampled_from(SEGMENTS + tuple(suffix for suffix in RESERVED_SUFFIXES if ":" not in suffix)),
    st.text(characters, max_size=6),
)
names = st.one_of(
    st.lists(segments, min_size=1, max_size=6).map(":".join),
    st.text(characters, max_size=40),
    st.text(st.sampled_from("aé€\U0001f422:"), min_size=45, max_size=210),
)


def is_proper(name: str) -> bool:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= MAX_NAME_BYTES and not any(unicodedata.category(character) == "Cc" for character in name)


@settings(max_examples=1_000)
@given(st.data())
def test_two_accepted_names_never_share_a_key(data: st.DataObject) -> None:
    one = data.draw(names)
    # Collisions need a common beginning: continue the first name, or take the beginning away from it.
    other = data.draw(
        st.one_of(
            names,
            segments.map(lambda tail: f"{one}:{tail}"),
            st.sampled_from(RESERVED_SUFFIXES).map(lambda tail: f"{one}:{tail}"),
            segments.map(lambda tail: f"{one}:{OWN_SEGMENT}:{tail}"),
            st.sampled_from([*shorter_names(one), "a"]),
        )
    )
    assume(one != other)
    if refusal_of(one) is None and refusal_of(other) is None:
        assert not do_collide(one, other)


def test_no_two_accepted_names_of_four_small_segments_share_a_key() -> None:
    accepted = [name for name in small_names(4) if refusal_of(name) is None]
    assert len(accepted) > 1_000
    # A common key means that one name continues the other after a colon, so only these pairs need a look.
    known = frozenset(accepted)
    collisions = [
        (shorter, name)
        for name in accepted
        for shorter in shorter_names(name)
        if shorter in known and do_collide(shorter, name)
    ]
    assert collisions == []


def test_no_two_accepted_names_of_two_small_segments_share_a_key_in_all_pairs() -> None:
    accepted = [name for name in small_names(2) if refusal_of(name) is None]
    assert [pair for pair in combinations(accepted, 2) if do_collide(*pair)] == []


@settings(max_examples=1_000)
@given(names)
@example("a:closed:closed")
@example("a:closed:x")
@example("a:stats:stats")
@example("a" * 190 + ":closed")
def test_a_proper_name_is_refused_only_if_an_accepted_name_shares_a_key_with_it(name: str) -> None:
    assume(is_proper(name))
    if refusal_of(name) is not None:
        assert any(refusal_of(owner) is None and do_collide(owner, name) for owner in shorter_names(name))


def test_of_all_names_of_four_small_segments_none_is_refused_without_need() -> None:
    refused = [name for name in small_names(4) if is_proper(name) and refusal_of(name) is not None]
    needless = [
        name
        for name in refused
        if not any(refusal_of(owner) is None and do_collide(owner, name) for owner in shorter_names(name))
    ]
    assert needless == []


@given(names)
def test_an_improper_name_is_always_refused(name: str) -> None:
    if not is_proper(name):
        assert refusal_of(name)


@given(names)
def test_a_refused_name_is_refused_with_its_field_and_a_reason(name: str) -> None:
    reason = refusal_of(name)
    if reason is None:
        assert accept(name, field="to_queue") == name
        return
    with pytest.raises(NameRefused) as refused:
        accept(name, field="to_queue")
    assert refused.value.metadata == {"field": "to_queue"}
    [violation] = refused.value.violations
    assert violation.field == "to_queue"
    assert reason in violation.description


@pytest.mark.parametrize("name", PROPER_AND_HARMLESS, ids=ascii)
def test_a_harmless_name_is_accepted(name: str) -> None:
    assert refusal_of(name) is None


@pytest.mark.parametrize("name", [*IMPROPER, "\ud800", "a\udfff"], ids=ascii)
def test_an_empty_too_long_or_unprintable_name_is_refused(name: str) -> None:
    assert refusal_of(name)


@pytest.mark.parametrize("name", COLLIDING, ids=ascii)
def test_a_name_with_a_key_of_another_queue_is_refused_and_the_reason_says_which(name: str) -> None:
    reason = refusal_of(name)
    assert reason is not None
    assert any(repr(owner) in reason for owner in shorter_names(name))


@pytest.mark.parametrize("character", ["a", "é", "€", "\U0001f422"], ids=ascii)
def test_the_length_counts_bytes_and_its_border_is_at_200(character: str) -> None:
    size = len(character.encode())
    fitting = character * (MAX_NAME_BYTES // size) + "a" * (MAX_NAME_BYTES % size)
    assert len(fitting.encode()) == MAX_NAME_BYTES
    assert refusal_of(fitting) is None
    assert refusal_of(fitting[:-1]) is None
    assert refusal_of(fitting + "a")
    assert refusal_of(fitting[:-1] + character * 2)


@given(names)
def test_braces_are_refused_in_a_cluster_and_nowhere_else(name: str) -> None:
    has_brace = "{" in name or "}" in name
    if refusal_of(name) is None:
        assert (refusal_of(name, is_cluster=True) is not None) == has_brace
    else:
        assert refusal_of(name, is_cluster=True) is not None


def test_the_service_spells_every_reserved_key_as_the_protocol_does() -> None:
    assert {suffix.removeprefix(":") for suffix in keys.PRESSURE.values()} == {"", *PRESSURE_SUFFIXES}
    assert {suffix.removeprefix(":") for suffix in keys.STALE_SUFFIXES} == set(OLD_SUFFIXES)


def test_every_key_of_headways_own_lies_in_the_reserved_region() -> None:
    assert all(keys.base_key("P", "q" + suffix).startswith("P:" + own_region("q")) for suffix in keys.OWN.values())
