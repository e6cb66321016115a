"""Every field of a policy at min−1, min, max, max+1; update masks; what comes back is what may be given."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from headway.v1 import queue_pb2
from headway.v1.queue_service_pb2 import CreateRequest, UpdateRequest
from headwayd.domain.errors import FieldInvalid, QueueExists
from headwayd.domain.limits import DAY_MS, HOUR_MS, MINUTE_MS, Limits
from headwayd.domain.model import POLICY_FIELDS, Policy
from headwayd.rpc import requests
from headwayd.rpc.policies import MASK_PATHS, in_paths, policy_message

LIMITS = Limits()


def span(ms: float) -> Duration:
    return Duration(seconds=math.floor(ms / 1_000), nanos=round((ms - 1_000 * math.floor(ms / 1_000)) * 1e6))


def with_value(path: str, value: Any) -> queue_pb2.Policy:
    policy = queue_pb2.Policy()
    group, _, leaf = path.rpartition(".")
    owner: Any = getattr(policy, group) if group else policy
    if isinstance(value, Duration):
        getattr(owner, leaf).CopyFrom(value)
    else:
        setattr(owner, leaf, value)
    return policy


def created(policy: queue_pb2.Policy, limits: Limits = LIMITS) -> Policy:
    return requests.new_policy(CreateRequest(queue="q", policy=policy), limits)


def violations(call: Callable[..., object], *asked: Any) -> dict[str, str]:
    with pytest.raises(FieldInvalid) as caught:
        call(*asked)
    assert caught.value.metadata == {"field": caught.value.violations[0].field}
    return {violation.field: violation.description for violation in caught.value.violations}


# path, name, least and most milliseconds
SPANS = [
    ("lease", "lease_ms", 100, 12 * HOUR_MS),
    ("retry.min_backoff", "min_backoff_ms", 0, DAY_MS),
    ("retry.max_backoff", "max_backoff_ms", 1_000, 30 * DAY_MS),  # least: the default min_backoff
    ("time_to_live", "time_to_live_ms", 1, 366 * DAY_MS),
    ("poll.base", "poll_base_ms", 10, MINUTE_MS),  # most: the default max
    ("poll.per_position", "poll_per_position_ms", 0, MINUTE_MS),
    ("poll.max", "poll_max_ms", 1_000, 10 * MINUTE_MS),  # least: the default base
    ("poll.tolerance", "poll_tolerance_ms", 0, MINUTE_MS),
    ("place_grace", "place_grace_ms", 0, 10 * MINUTE_MS),
    ("dedupe_window", "dedupe_window_ms", 0, 7 * DAY_MS),
    ("remember", "remember_ms", 0, DAY_MS),
]
COUNTS = [
    ("bound", "bound", 1_000_000_000),
    ("limit", "limit", 1_000_000),
    ("retry.max_attempts", "max_attempts", 1_000_000),
    ("poll.strikes", "poll_strikes", 100),
    ("turns", "turns", 1_000_000),
]
NUMBERS = [("retry.multiplier", "multiplier", 1.0, 100.0), ("retry.jitter", "jitter", 0.0, 1.0)]


@pytest.mark.parametrize(("path", "name", "least", "most"), SPANS)
def test_span_is_taken_inside_its_range_and_refused_outside(path: str, name: str, least: int, most: int) -> None:
    for ms in (least, least + 1, most - 1, most):
        assert getattr(created(with_value(path, span(ms))), name) == ms
    for ms in (least - 1, most + 1):
        found = violations(created, with_value(path, span(ms)))
        assert set(found) <= {f"policy.{path}", "policy.poll.max"}


@pytest.mark.parametrize(("path", "name", "least", "most"), SPANS)
def test_span_finer_than_a_millisecond_is_refused(path: str, name: str, least: int, most: int) -> None:
    del name, most
    value = span(least + 1)
    value.nanos += 1
    assert violations(created, with_value(path, value)) == {f"policy.{path}": "is finer than a millisecond"}


@pytest.mark.parametrize(("path", "name", "most"), COUNTS)
def test_count_is_taken_up_to_its_most_and_zero_is_the_default(path: str, name: str, most: int) -> None:
    for value in (1, most - 1, most):
        assert getattr(created(with_value(path, value)), name) == value
    assert getattr(created(with_value(path, 0)), name) == getattr(Policy(), name)
    assert list(violations(created, with_value(path, most + 1))) == [f"policy.{path}"]


@pytest.mark.parametrize(("path", "name", "least", "most"), NUMBERS)
def test_number_is_taken_inside_its_range_and_zero_is_the_default(
    path: str, name: str, least: float, most: float
) -> None:
    for value in (least, math.nextafter(least, most), math.nextafter(most, least), most):
        assert getattr(created(with_value(path, value)), name) == value
    for value in (0.0, -0.0):
        assert getattr(created(with_value(path, value)), name) == getattr(Policy(), name)
    for value in (math.nextafter(most, math.inf), -1.0, math.nan, math.inf, -math.inf, -5e-324):
        assert list(violations(created, with_value(path, value))) == [f"policy.{path}"]


def test_multiplier_below_one_is_refused() -> None:
    below = with_value("retry.multiplier", math.nextafter(1.0, 0.0))
    assert list(violations(created, below)) == ["policy.retry.multiplier"]


@pytest.mark.parametrize(
    "value",
    [
        Duration(seconds=1, nanos=-1),
        Duration(seconds=-1, nanos=1),
        Duration(nanos=1_000_000_000),
        Duration(nanos=-1_000_000_000),
        Duration(seconds=2**63 - 1),
        Duration(seconds=-(2**63)),
        Duration(seconds=315_576_000_001),
    ],
)
def test_what_is_no_duration_is_refused(value: Duration) -> None:
    assert violations(created, with_value("lease", value)) == {"policy.lease": "is no valid duration"}


def test_unset_policy_is_the_domains_default() -> None:
    assert requests.new_policy(CreateRequest(queue="q"), LIMITS) == Policy()
    assert created(queue_pb2.Policy()) == Policy()


def test_max_backoff_unset_is_never_below_min_backoff() -> None:
    assert created(with_value("retry.min_backoff", span(10 * MINUTE_MS))).max_backoff_ms == 10 * MINUTE_MS
    assert created(with_value("retry.min_backoff", span(1))).max_backoff_ms == 5 * MINUTE_MS


def test_max_backoff_below_min_backoff_is_refused() -> None:
    policy = with_value("retry.min_backoff", span(2_000))
    policy.retry.max_backoff.CopyFrom(span(1_999))
    assert violations(created, policy) == {"policy.retry.max_backoff": "must be at least 2 s"}
    policy.retry.max_backoff.CopyFrom(span(2_000))
    assert created(policy).max_backoff_ms == 2_000


def test_poll_max_below_base_is_refused() -> None:
    policy = with_value("poll.base", span(10 * MINUTE_MS))
    assert violations(created, policy) == {"policy.poll.max": "must be at least 10 min"}
    policy.poll.max.CopyFrom(span(10 * MINUTE_MS))
    assert created(policy).poll_base_ms == 10 * MINUTE_MS
    policy.poll.base.CopyFrom(span(10 * MINUTE_MS + 1))
    assert "policy.poll.base" in violations(created, policy)


def test_the_operators_longest_lease_bounds_the_policys() -> None:
    limits = Limits(max_lease_ms=60_000)
    assert created(with_value("lease", span(60_000)), limits).lease_ms == 60_000
    assert list(violations(created, with_value("lease", span(60_001)), limits)) == ["policy.lease"]


def test_a_flag_is_taken_as_it_is() -> None:
    assert created(queue_pb2.Policy(dead_letter_expired=True)) == Policy(dead_letter_expired=True)
    assert not created(queue_pb2.Policy()).dead_letter_expired


def test_every_violation_is_told_at_once() -> None:
    policy = queue_pb2.Policy(bound=2**32 - 1, lease=span(1), remember=span(-1))
    assert list(violations(created, policy)) == ["policy.bound", "policy.lease", "policy.remember"]


def changed(policy: queue_pb2.Policy, *paths: str) -> tuple[Policy, tuple[str, ...]]:
    request = UpdateRequest(queue="q", policy=policy)
    request.update_mask.paths.extend(paths)
    return requests.changed_policy(request, LIMITS)


def test_mask_names_fields_and_groups() -> None:
    policy = queue_pb2.Policy(bound=5, limit=7, retry=queue_pb2.Retry(max_attempts=3))
    assert changed(policy, "bound") == (Policy(bound=5), ("bound",))
    assert changed(policy, "retry.max_attempts", "bound")[1] == ("bound", "max_attempts")
    values, names = changed(policy, "retry")
    assert values == Policy(max_attempts=3)
    assert names == ("max_attempts", "min_backoff_ms", "max_backoff_ms", "multiplier", "jitter")
    assert changed(policy, "poll")[1] == tuple(name for name in POLICY_FIELDS if name.startswith("poll_"))
    assert changed(policy, "limit", "limit", "limit")[1] == ("limit",)


def test_every_field_has_a_path() -> None:
    assert {names[0] for names in MASK_PATHS.values() if len(names) == 1} == set(POLICY_FIELDS)
    assert changed(queue_pb2.Policy(), *MASK_PATHS) == (Policy(), POLICY_FIELDS)


def test_fields_outside_the_mask_are_not_looked_at() -> None:
    policy = queue_pb2.Policy(bound=5, lease=span(1), time_to_live=span(0))
    assert changed(policy, "bound") == (Policy(bound=5), ("bound",))
    assert list(violations(changed, policy, "bound", "lease")) == ["policy.lease"]
    assert list(violations(changed, policy, "bound", "time_to_live")) == ["policy.time_to_live"]


@pytest.mark.parametrize("path", ["", "nothing", "retry.", "retry.nothing", "policy.bound", "Bound", "bound.x", "*"])
def test_unknown_path_is_refused(path: str) -> None:
    found = violations(changed, queue_pb2.Policy(), "bound", path)
    assert found == {"update_mask.paths[1]": "names no field of Policy"}


def test_empty_mask_is_refused() -> None:
    assert list(violations(changed, queue_pb2.Policy(bound=1))) == ["update_mask"]


def test_a_named_unset_field_gets_its_default() -> None:
    assert changed(queue_pb2.Policy(), "lease", "poll.strikes") == (Policy(), ("lease_ms", "poll_strikes"))


@pytest.mark.parametrize(
    "policy",
    [
        Policy(),
        Policy(
            bound=1,
            lease_ms=100,
            multiplier=1.5,
            jitter=1.0,
            poll_strikes=1,
            place_grace_ms=5,
            dead_letter_expired=True,
        ),
    ],
)
def test_a_policy_told_can_be_given_back(policy: Policy) -> None:
    assert created(policy_message(policy)) == policy


def test_differing_fields_are_named_as_the_schema_does() -> None:
    error = in_paths(QueueExists("", metadata={"queue": "q", "fields": "bound,max_backoff_ms"}))
    assert error.metadata == {"queue": "q", "fields": "bound,retry.max_backoff"}
