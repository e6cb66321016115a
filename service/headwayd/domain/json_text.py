"""JSON of strangers: how much of it is read before it is known who asks."""

from __future__ import annotations

# To read JSON takes some microseconds and 150 bytes or more for each mark, in which nobody else is served: ten seconds
# for 8 MiB of empty messages.
MOST_MARKS = 200_000


def marks_of(text: bytes) -> int:
    """How many objects, lists and commas there are, those within texts among them."""
    return sum(map(text.count, (b"{", b"[", b",")))


def too_many(marks: int) -> str:
    """What is wrong with a text that has so many, behind its name."""
    return f"has {marks} objects, lists and commas, at most {MOST_MARKS} are accepted"
