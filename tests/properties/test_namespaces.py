"""Names of queues, qualified or not, and their keys: no two queues share one, and each key tells whose it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwayd.domain import names, namespaces
from headwayd.store import keys

PREFIX = "__pressure__"
# Hostile to both spellings: what separates them, and what stands in keys.
NAMES = st.text(st.sampled_from("aX:@{}\x1f/*[]é"), min_size=1, max_size=12).filter(
    lambda name: names.refusal_of(name, is_cluster=True) is None
)
NAMESPACES = st.just(namespaces.DEFAULT) | st.from_regex(r"[a-z0-9]([a-z0-9_.-]{0,6}[a-z0-9])?", fullmatch=True)
QUEUES = st.builds(lambda namespace, name: namespaces.qualifier(namespace) + name, NAMESPACES, NAMES)


def all_keys(queue: str, *, is_cluster: bool) -> set[str]:
    base = keys.base_key(PREFIX, queue, is_cluster=is_cluster)
    return {base + suffix for suffix in (keys.PRESSURE | keys.OWN).values()}


@given(QUEUES, st.booleans())
def test_a_key_tells_whose_it_is(queue: str, is_cluster: bool) -> None:
    base = keys.base_key(PREFIX, queue, is_cluster=is_cluster)
    assert keys.queue_of_base(PREFIX, base.encode(), is_cluster=is_cluster) == queue


@given(QUEUES.filter(lambda queue: namespaces.SEPARATOR in queue), st.booleans())
def test_a_key_that_reads_like_a_qualified_name_is_nobodys(inside: str, is_cluster: bool) -> None:
    """A foreign client may have made it."""
    key = f"{PREFIX}:{{{inside}}}" if is_cluster else f"{PREFIX}:{inside}"
    assert keys.queue_of_base(PREFIX, key.encode(), is_cluster=is_cluster) is None


@pytest.mark.parametrize("name", ["{acme}:{mail}", "{{x}}", "{a{b}", "{a}b}"])
def test_a_key_with_further_braces_is_nobodys_in_a_cluster(name: str) -> None:
    """A foreign client may have made it, and a queue's name has none there."""
    assert keys.queue_of_base(PREFIX, f"{PREFIX}:{name}".encode(), is_cluster=True) is None
    assert keys.queue_of_base(PREFIX, f"{PREFIX}:{name}".encode()) == name


@given(QUEUES, QUEUES, st.booleans())
def test_two_queues_share_no_key(one: str, other: str, is_cluster: bool) -> None:
    shared = all_keys(one, is_cluster=is_cluster) & all_keys(other, is_cluster=is_cluster)
    assert bool(shared) == (one == other)


@given(st.text(max_size=30))
def test_no_name_from_outside_is_qualified(name: str) -> None:
    if names.refusal_of(name) is None:
        assert namespaces.split(name) == (namespaces.DEFAULT, name)


@given(st.text(st.sampled_from("aA0-_.:@ \x1f/{*é"), max_size=70))
def test_an_acceptable_namespace_is_plain(namespace: str) -> None:
    if namespaces.refusal_of(namespace) is None:
        assert set(namespace) <= set("a0-_.")
        assert 0 < len(namespace) <= 63
