"""Builds a queue's policy and an update mask from keyword arguments. Ranges and defaults are the service's."""

from collections.abc import Iterator
from datetime import timedelta
from typing import TypedDict

from google.protobuf.field_mask_pb2 import FieldMask

from headway._spans import exact
from headway.v1.queue_pb2 import Policy, Poll

_RETRY_FIELDS = frozenset(("max_attempts", "min_backoff", "max_backoff", "multiplier", "jitter"))


class PolicyFields(TypedDict, total=False):
    """The fields of a policy, those of `retry` beside the others. None, like leaving a field out, means its default.

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
    poll: Poll | None
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
    for name, value in fields.items():
        if name not in PolicyFields.__annotations__:
            raise TypeError(f"a policy has no field {name!r}")
        target = policy.retry if name in _RETRY_FIELDS else policy
        if value is None:
            target.ClearField(name)  # type: ignore[arg-type]  # the name was looked up above
        elif isinstance(value, timedelta):
            getattr(target, name).CopyFrom(exact(value))
        elif isinstance(value, Poll):
            policy.poll.CopyFrom(value)
        else:
            setattr(target, name, value)
    return policy


def update_mask(fields: PolicyFields) -> FieldMask:
    """The paths of the given fields."""

    def paths() -> Iterator[str]:
        for name in fields:
            yield f"retry.{name}" if name in _RETRY_FIELDS else name

    return FieldMask(paths=sorted(paths()))
