"""Comparing policies."""

from __future__ import annotations

from headwayd.domain.errors import QueueExists
from headwayd.domain.model import Policy, Queue


def differences(queue: Queue, asked: Policy) -> QueueExists | None:
    """The error that says in which fields the standing queue differs; None if in none."""
    fields = queue.policy.differing_fields(asked)
    if not fields:
        return None
    return QueueExists(
        f"queue {queue.name!r} stands with another policy: {', '.join(fields)}",
        metadata={"queue": queue.name, "fields": ",".join(fields)},
    )
