"""Comparing and changing policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headwayd.domain.errors import FieldInvalid, QueueExists, Violation
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


def changed(before: Policy, asked: Policy, fields: Sequence[str]) -> Policy:
    """`before` with the named fields as in `asked`. Raises FieldInvalid if they then contradict each other."""
    after = replace(before, **{field: getattr(asked, field) for field in fields})
    violations = []
    if after.max_backoff_ms < after.min_backoff_ms:
        violations.append(Violation("policy.retry.max_backoff", "would be shorter than min_backoff"))
    if after.poll_max_ms < after.poll_base_ms:
        violations.append(Violation("policy.poll.max", "would be shorter than base"))
    if violations:
        raise FieldInvalid(
            "the changed policy would contradict itself",
            metadata={"field": violations[0].field},
            violations=violations,
        )
    return after
