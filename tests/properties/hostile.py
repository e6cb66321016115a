"""What is reserved in a queue's name, spelled out again from the protocol, and names made to hurt.

Spelled again on purpose: the service's own tables (`headwayd.domain.names`, `headwayd.store.keys`) are what is tested.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

# The eleven suffixes of pressure 0.15; the queue's own key is the twelfth key.
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
)
# How older clients spelled the four counters; a Delete removes these keys, too.
OLD_SUFFIXES = tuple(
    style + verb + "_" + unit
    for style in ("", "stats_")
    for verb in ("produced", "consumed")
    for unit in ("messages", "bytes")
)
RESERVED_SUFFIXES = PRESSURE_SUFFIXES + OLD_SUFFIXES
OWN_SEGMENT = "x"


def fixed_keys(name: str) -> frozenset[str]:
    """Every key of the queue that pressure spells, today or formerly, without the prefix."""
    return frozenset({name, *(f"{name}:{suffix}" for suffix in RESERVED_SUFFIXES)})


def own_region(name: str) -> str:
    """What every key that Headway itself keeps for the queue begins with."""
    return f"{name}:{OWN_SEGMENT}:"


def do_collide(one: str, other: str) -> bool:
    """Whether a key of one queue is, or could be, a key of the other.

    Headway's own keys are taken as the whole region `q:x:*`, so that a key added later collides with nobody either.
    """
    if fixed_keys(one) & fixed_keys(other):
        return True
    for owner, guest in ((one, other), (other, one)):
        region = own_region(owner)
        if own_region(guest).startswith(region) or any(key.startswith(region) for key in fixed_keys(guest)):
            return True
    return False


def shorter_names(name: str) -> Iterator[str]:
    """Every name that `name` continues after a colon: only these can share a key with it and be shorter."""
    at = name.find(":")
    while at >= 0:
        yield name[:at]
        at = name.find(":", at + 1)


# Segments that make collisions likely: the reserved ones, their parts, an ordinary one and an empty one.
SEGMENTS = ("a", "", "x", "stats", "closed", "bound", "produced_messages", "stats_consumed_bytes", "not_full")


def small_names(longest: int) -> Iterator[str]:
    """All names of up to `longest` segments over `SEGMENTS`."""
    for count in range(1, longest + 1):
        for segments in product(SEGMENTS, repeat=count):
            yield ":".join(segments)


# Names with a claim each; what the service must say is decided by the tests, not here.
PROPER_AND_HARMLESS = (
    "a",
    "é",
    "日本",
    "\U0001f422",
    "a b",
    " ",
    "*",
    "a*",
    "a?[b]\\c^",
    "{a}",
    "a}{b",
    "{}",
    "../../etc/passwd",
    "'; DROP TABLE queues; --",
    "%s%n\\0",
    "a:b",
    "a::b",
    ":",
    "::",
    ":a",
    "a:",
    "x",
    "x:a",
    "xx:x-y",
    "a:x-",
    "a:X",
    "closed",
    ":closed",
    ":bound",
    ":x",
    "bound:",
    "a:closed:b",
    "a:bound_",
    "a:Closed",
    "a:stats:b",
    "stats",
    "stats:produced_messagesX",
    "\u202eabc\u202c",
    "\u200fabc",
    "a\u200bb",
    "\ufeff",
    "e\u0301",
    "__pressure__",
    "__pressure__:a",
    "a" * 200,
    "é" * 100,
    "\U0001f422" * 50,
    "a" + "\U0001f422" * 49 + "abc",
)
IMPROPER = (
    "",
    "a" * 201,
    "é" * 100 + "a",
    "\U0001f422" * 50 + "a",
    "aaa" + "\U0001f422" * 49 + "é",
    "\0",
    "a\0b",
    "a\nb",
    "a\r\n",
    "\r\nDEL a\r\n",
    "\t",
    "\x1b[2J",
    "\x7f",
    "a\x85b",
    "\x9f",
)
COLLIDING = (
    *(f"a:{suffix}" for suffix in RESERVED_SUFFIXES),
    "a:stats",
    "stats:produced_messages",
    "a:x",
    "a:x:meta",
    "a:x:b:c",
    "a:b:closed",
    "a::closed",
    "::closed",
    ":::x:y",
    "\u202ea:closed",
    "*:bound",
    "{a}:consumer_free",
)
