"""Which queues a grant is about."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from headwayd.domain.access import CallerRole, Grant, Identity
from headwayd.domain.errors import PermissionDenied
from headwayd.domain.limits import Limits
from headwayd.engine.guarded import GuardedEngine


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


async def test_names_on_which_a_caller_is_refused_take_no_memory() -> None:
    identity = Identity(name="", namespace="team", grants=(Grant(CallerRole.WATCHER, ("mine",)),))
    engine = GuardedEngine(cast(Any, SimpleNamespace(limits=Limits(), purge=None)), identity, cast(Any, None))
    for queue in ("mine", "made-up", "made-up-too"):
        with pytest.raises(PermissionDenied):
            await engine.purge(queue, False, budget_s=1)
    assert not engine._known


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
