"""Which queues a grant is about."""

from __future__ import annotations

import pytest

from headwayd.domain.access import CallerRole, Grant, Identity


@pytest.mark.parametrize(
    ("patterns", "queue", "is_covered"),
    [
        (("*",), "anything/at:all", True),
        (("a.*",), "a.b", True),
        (("a.*",), "a", False),
        (("a.*",), "aXb", False),
        (("a.*",), "b.a.b", False),
        (("a?",), "ab", True),
        (("a?",), "abc", False),
        (("[ab]",), "b", True),
        (("a", "b"), "b", True),
        (("A",), "a", False),
        (("a",), "a\n", False),
        ((), "a", False),
    ],
)
def test_a_pattern_covers_whole_names(patterns: tuple[str, ...], queue: str, is_covered: bool) -> None:
    assert Grant(CallerRole.PRODUCER, patterns).covers(queue) is is_covered


@pytest.mark.parametrize(
    ("patterns", "prefix", "is_covered"),
    [
        (("*",), "", True),
        (("*",), "a", True),
        (("a.*",), "a.", True),
        (("a.*",), "a.b", True),
        (("a.*",), "a", False),
        (("a.*",), "", False),
        (("a",), "a", False),
        (("?*",), "a", False),
        (("a*b*",), "ab", False),
        (("a", "b*"), "bc", True),
    ],
)
def test_a_list_needs_every_name_that_it_could_show(patterns: tuple[str, ...], prefix: str, is_covered: bool) -> None:
    assert Grant(CallerRole.WATCHER, patterns).covers_all(prefix) is is_covered


def test_roles_of_several_grants_add_up_where_both_cover() -> None:
    grants = (Grant(CallerRole.PRODUCER, ("a*",)), Grant(CallerRole.CONSUMER, ("*b",)))
    identity = Identity(name="x", namespace="team", grants=grants)
    assert identity.roles_on("ab") == CallerRole.PRODUCER | CallerRole.CONSUMER
    assert identity.roles_on("a") == CallerRole.PRODUCER
    assert identity.roles_on("c") == 0
    assert identity.roles == CallerRole.PRODUCER | CallerRole.CONSUMER
