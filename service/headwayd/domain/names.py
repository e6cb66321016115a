"""Which queue names are acceptable. Answers for names only; `store/keys.py` spells the keys that they become."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from headwayd.domain.errors import NameRefused, Violation
from headwayd.domain.limits import MAX_NAME_BYTES

# What pressure 0.15 (and its older clients) append to a queue's own key after a colon.
PRESSURE_SUFFIXES = (
    "bound",
    "producer",
    "consumer",
    "producer_free",
    "consumer_free",
    "not_full",
    "closed",
    "stats:produced_messages",
    "stats:produced_bytes",
    "stats:consumed_messages",
    "stats:consumed_bytes",
    "produced_messages",
    "produced_bytes",
    "consumed_messages",
    "consumed_bytes",
    "stats_produced_messages",
    "stats_produced_bytes",
    "stats_consumed_messages",
    "stats_consumed_bytes",
)
# `a:stats` has, in the oldest spelling, a key `a:stats:produced_messages`: that is queue `a`'s in the newest.
AMBIGUOUS_SUFFIX = "stats"
# Headway's own keys of queue `q` are `q:x:…`.
OWN_SEGMENT = "x"


@lru_cache(maxsize=4096)  # every call of the service asks, and owners are asked for again
def refusal_of(name: str, *, is_cluster: bool = False) -> str | None:
    """Why `name` cannot be a queue's name, or None if it can.

    A name is refused only if it is no proper name, or if one of its keys could be a key of another acceptable name:
    `a:closed` would be the closed key of `a`. The rule is symmetric in effect: of two names that would collide, the
    longer one is refused.
    """
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "is not valid UTF-8"
    if size == 0:
        return "is empty"
    if size > MAX_NAME_BYTES:
        return f"has {size} bytes, at most {MAX_NAME_BYTES} are accepted"
    if any(unicodedata.category(character) == "Cc" for character in name):
        return "contains a control character"
    for suffix in PRESSURE_SUFFIXES:
        owner, colon, tail = name.rpartition(":" + suffix)
        if colon and not tail and _is_acceptable(owner):
            return f"would be the {suffix} key of queue {owner!r}"
    owner, colon, tail = name.rpartition(":" + AMBIGUOUS_SUFFIX)
    if colon and not tail and _is_acceptable(owner):
        return f"would share its counters with queue {owner!r}"
    segments = name.split(":")
    for index in range(1, len(segments)):
        owner = ":".join(segments[:index])
        if segments[index] == OWN_SEGMENT and _is_acceptable(owner):
            return f"lies in the keys that Headway keeps for queue {owner!r}"
    if is_cluster and ("{" in name or "}" in name):
        return "contains a brace, and the store is a cluster"
    return None


def _is_acceptable(owner: str) -> bool:
    """A name that is refused itself owns no keys."""
    return bool(owner) and refusal_of(owner) is None


def accept(name: str, *, field: str = "queue", is_cluster: bool = False) -> str:
    """`name` itself if it is acceptable; raises NameRefused with the reason otherwise."""
    reason = refusal_of(name, is_cluster=is_cluster)
    if reason is None:
        return name
    violation = Violation(field, f"the name {reason}")
    raise NameRefused(f"the queue name {reason}", metadata={"field": field}, violations=[violation])
