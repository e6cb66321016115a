"""From the metadata of a KEDA trigger to what it asks for: checked in full. Keys that are not ours are KEDA's own."""

from __future__ import annotations

import math
from typing import NamedTuple

from headwayd.domain.limits import Limits
from headwayd.domain.scaling import Metric
from headwayd.rpc.keda import externalscaler_pb2 as keda
from headwayd.rpc.validation import Checks

_METADATA = "scalerMetadata"
_MOST = 1e12  # no queue is longer, and nobody waits longer
_LONGEST_NUMBER = 32


class Trigger(NamedTuple):
    """Which metric of which queue is to be brought to which target: messages, or seconds."""

    queue: str
    metric: Metric
    target: float

    @property
    def metric_name(self) -> str:
        """As KEDA and the HorizontalPodAutoscaler call it."""
        return f"headway-{self.metric.value.replace('_', '-')}"


def trigger_of(reference: keda.ScaledObjectRef, limits: Limits) -> Trigger:
    """What a trigger asks for. Raises FieldInvalid with everything that is wrong; the queue's name is only read."""
    checks = Checks(limits)
    given = reference.scalerMetadata
    checks.label(f"{_METADATA}.queue", given.get("queue", ""), max_bytes=1_000)
    metric = _metric(given.get("metric", ""), checks)
    target = _target(given.get("target", ""), checks)
    checks.finish()
    return Trigger(given["queue"], metric, target)


def metric_asked_for(request: keda.GetMetricsRequest, limits: Limits) -> Trigger:
    """The trigger of GetMetrics, whose metric must be the one that GetMetricSpec names."""
    trigger = trigger_of(request.scaledObjectRef, limits)
    if request.metricName != trigger.metric_name:
        checks = Checks(limits)
        checks.invalid("metricName", f"must be {trigger.metric_name}, as GetMetricSpec names it")
        checks.finish()
    return trigger


def _metric(text: str, checks: Checks) -> Metric:
    try:
        return Metric(text)
    except ValueError:
        checks.invalid(f"{_METADATA}.metric", f"must be one of {', '.join(Metric)}")
        return Metric.DEPTH


def _target(text: str, checks: Checks) -> float:
    try:
        target = float(text) if len(text) <= _LONGEST_NUMBER else math.nan
    except ValueError:
        target = math.nan
    if not 0 < target <= _MOST:  # also true for NaN
        checks.invalid(f"{_METADATA}.target", "must be a number above 0: messages, or seconds")
        return 1.0
    return target
