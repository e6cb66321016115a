"""Builds a queue's policy and an update mask from keyword arguments. Ranges and defaults are the service's."""

from datetime import timedelta
from typing import Any, TypedDict

from google.protobuf.field_mask_pb2 import FieldMask

from headway._spans import exact
from headway.v1.queue_pb2 import Policy, Poll

_RETRY_FIELDS = frozenset(("max_attempts", "min_backoff", "max_backoff", "multiplier", "jitter"))


class PolicyFields(TypedDict, total=False):
    """The fields of a policy, those of `retry` and of `poll` beside the others. None, like leaving a field out, means
    its default.

    Meanings, ranges and defaults stand at `headway.v1.Policy`; spans have millisecond resolution.
    """

    bound: int | None
    limit: int | None
    lease: timedelta | None
    max_attempts: int | None
    min_backoff: timedelta | None
    max_backoff: timedelta | None
    multiplier: float | None
    jitter: float | None
    time_to_live: timedelta | None
    poll: Poll | None  # as a whole
    poll_base: timedelta | None
    poll_per_position: timedelta | None
    poll_max: timedelta | None
    poll_tolerance: timedelta | None
    poll_strikes: int | None
    place_grace: timedelta | None
    turns: int | None
    dedupe_window: timedelta | None
    remember: timedelta | None
    dead_letter_expired: bool | None


def build_policy(base: Policy | None, fields: PolicyFields) -> Policy:
    """`base` with the given fields laid over it. Raises TypeError for a field that no policy has."""
    policy = Policy()
    if base is not None:
        policy.CopyFrom(base)
    for name, value in sorted(fields.items()):  # `poll` before its parts
        if name not in PolicyFields.__annotations__:
            raise TypeError(f"a policy has no field {name!r}")
        group, _, field = _path(name).rpartition(".")
        target: Any = getattr(policy, group) if group else policy
        if value is None:
            target.ClearField(field)
        elif isinstance(value, timedelta):
            getattr(target, field).CopyFrom(exact(value))
        elif isinstance(value, Poll):
            policy.poll.CopyFrom(value)
        else:
            setattr(target, field, value)
    return policy


def update_mask(fields: PolicyFields) -> FieldMask:
    """The paths of the given fields."""
    return FieldMask(paths=sorted(map(_path, fields)))


def _path(name: str) -> str:
    """Where the field stands in a policy."""
    if name in _RETRY_FIELDS:
        return f"retry.{name}"
    return name.replace("_", ".", 1) if name.startswith("poll_") else name
