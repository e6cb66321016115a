"""Policies between the schema and the domain: ranges, field masks, and the way back.

Every default is the domain's; here stands only what may be said.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from headway.v1 import queue_pb2
from headwayd.domain.errors import QueueExists
from headwayd.domain.limits import (
    DAY_MS,
    MAX_ATTEMPTS,
    MAX_BOUND,
    MAX_SLOTS,
    MAX_TIME_TO_LIVE_MS,
    MAX_TURNS,
    MIN_LEASE_MS,
    MINUTE_MS,
    Limits,
    in_words,
)
from headwayd.domain.model import LONGEST_DEDUPE_MS, POLICY_FIELDS, Policy
from headwayd.rpc.spans import set_duration
from headwayd.rpc.validation import Checks

_DEFAULTS = Policy()


class _Kind(Enum):
    COUNT = auto()  # a whole number; 0 is the default
    NUMBER = auto()  # a fraction; 0 is the default
    SPAN = auto()  # a Duration to the millisecond; unset is the default
    FLAG = auto()  # true or false; false is the default


@dataclass(frozen=True, slots=True)
class _PolicyField:
    """One field: its path in `headway.v1.Policy`, its name in the domain's Policy, and its range."""

    path: str
    name: str
    kind: _Kind
    lowest: float
    highest: float | None  # None: the longest lease that the operator allows


_FIELDS = (
    _PolicyField("bound", "bound", _Kind.COUNT, 0, MAX_BOUND),
    _PolicyField("limit", "limit", _Kind.COUNT, 0, MAX_SLOTS),
    _PolicyField("lease", "lease_ms", _Kind.SPAN, MIN_LEASE_MS, None),
    _PolicyField("retry.max_attempts", "max_attempts", _Kind.COUNT, 0, MAX_ATTEMPTS),
    _PolicyField("retry.min_backoff", "min_backoff_ms", _Kind.SPAN, 0, DAY_MS),
    _PolicyField("retry.max_backoff", "max_backoff_ms", _Kind.SPAN, 0, 30 * DAY_MS),
    _PolicyField("retry.multiplier", "multiplier", _Kind.NUMBER, 1.0, 100.0),
    _PolicyField("retry.jitter", "jitter", _Kind.NUMBER, 0.0, 1.0),
    _PolicyField("time_to_live", "time_to_live_ms", _Kind.SPAN, 1, MAX_TIME_TO_LIVE_MS),
    _PolicyField("poll.base", "poll_base_ms", _Kind.SPAN, 10, 10 * MINUTE_MS),
    _PolicyField("poll.per_position", "poll_per_position_ms", _Kind.SPAN, 0, MINUTE_MS),
    _PolicyField("poll.max", "poll_max_ms", _Kind.SPAN, 10, 10 * MINUTE_MS),
    _PolicyField("poll.tolerance", "poll_tolerance_ms", _Kind.SPAN, 0, MINUTE_MS),
    _PolicyField("poll.strikes", "poll_strikes", _Kind.COUNT, 1, 100),
    _PolicyField("place_grace", "place_grace_ms", _Kind.SPAN, 0, 10 * MINUTE_MS),
    _PolicyField("turns", "turns", _Kind.COUNT, 0, MAX_TURNS),
    _PolicyField("dedupe_window", "dedupe_window_ms", _Kind.SPAN, 0, LONGEST_DEDUPE_MS),
    _PolicyField("remember", "remember_ms", _Kind.SPAN, 0, DAY_MS),
    _PolicyField("dead_letter_expired", "dead_letter_expired", _Kind.FLAG, 0, 1),
)
_ZERO_IS_UNSET = {"time_to_live_ms"}  # a span of 0 is outside its range

# What each path of an update mask names: a field, or with a group's name all of its fields.
MASK_PATHS: dict[str, tuple[str, ...]] = {
    **{field.path: (field.name,) for field in _FIELDS},
    **{
        group: tuple(field.name for field in _FIELDS if field.path.startswith(f"{group}."))
        for group in ("retry", "poll")
    },
}


def policy_of(policy: queue_pb2.Policy, checks: Checks, *, names: Collection[str] = POLICY_FIELDS) -> Policy:
    """The domain's policy with `names` as given and everything else at its default.

    Fields outside `names` are not looked at. Notes what is out of its range.
    """
    values = {field.name: _read(policy, field, checks) for field in _FIELDS if field.name in names}
    if "max_backoff_ms" in values and not policy.retry.HasField("max_backoff"):
        values["max_backoff_ms"] = max(values["max_backoff_ms"], values.get("min_backoff_ms", 0))
    _check_order(values, "min_backoff_ms", "max_backoff_ms", "policy.retry.max_backoff", checks)
    _check_order(values, "poll_base_ms", "poll_max_ms", "policy.poll.max", checks)
    return Policy(**values)


def masked_names(paths: Iterable[str], checks: Checks) -> tuple[str, ...]:
    """The domain's names of the fields that an update mask names, in the order of declaration."""
    named: set[str] = set()
    is_empty = True
    for index, path in enumerate(paths):
        is_empty = False
        names = MASK_PATHS.get(path)
        if names is None:
            checks.invalid(f"update_mask.paths[{index}]", "names no field of Policy")
        else:
            named.update(names)
    if is_empty:
        checks.invalid("update_mask", "names no field")
    return tuple(name for name in POLICY_FIELDS if name in named)


def in_paths(error: QueueExists) -> QueueExists:
    """The same error with the differing fields named as the schema names them: "retry.max_backoff"."""
    paths = {field.name: field.path for field in _FIELDS}
    fields = [paths.get(name, name) for name in error.metadata.get("fields", "").split(",")]
    return QueueExists(
        f"the queue stands with another policy: {', '.join(fields)}",
        metadata={**error.metadata, "fields": ",".join(fields)},
    )


def policy_message(policy: Policy) -> queue_pb2.Policy:
    """The policy in force, every default filled in; no limit of age is an unset one."""
    message = queue_pb2.Policy()
    for field in _FIELDS:
        group, _, leaf = field.path.rpartition(".")
        owner: Any = getattr(message, group) if group else message
        value = getattr(policy, field.name)
        if field.kind is not _Kind.SPAN:
            setattr(owner, leaf, value)
        elif value or field.name not in _ZERO_IS_UNSET:
            set_duration(getattr(owner, leaf), value)
    return message


def _read(policy: queue_pb2.Policy, field: _PolicyField, checks: Checks) -> Any:
    group, _, leaf = field.path.rpartition(".")
    owner: Any = getattr(policy, group) if group else policy
    path = f"policy.{field.path}"
    default = getattr(_DEFAULTS, field.name)
    highest = _highest(field, checks.limits)
    match field.kind:
        case _Kind.SPAN:
            return checks.span_ms(
                owner,
                leaf,
                path,
                lowest_ms=int(field.lowest),
                highest_ms=int(highest),
                default_ms=default,
                is_exact=True,
            )
        case _Kind.FLAG:
            return getattr(owner, leaf)
        case _Kind.COUNT:
            value = getattr(owner, leaf)
            return checks.count(path, value, lowest=int(field.lowest), highest=int(highest), default=default)
        case _Kind.NUMBER:
            value = getattr(owner, leaf)
            return checks.number(path, value, lowest=field.lowest, highest=highest, default=default)


def _highest(field: _PolicyField, limits: Limits) -> float:
    return limits.max_lease_ms if field.highest is None else field.highest


def _check_order(values: dict[str, Any], lower: str, upper: str, path: str, checks: Checks) -> None:
    """Notes an upper bound below its lower one. If only one of them changes, the engine compares it with the other."""
    if lower in values and upper in values and values[upper] < values[lower]:
        checks.invalid(path, f"must be at least {in_words(values[lower])}")
