"""KEDA's questions about queues, by which it scales workers. Nothing here is Headway's own interface.

A queue that is not there is NOT_FOUND: KEDA then leaves the workers as they are, and asks again.
"""
# ruff: noqa: N802 - the methods are named by the schema

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import aclosing

from headwayd.domain import scaling
from headwayd.domain.scaling import Metric
from headwayd.rpc.deadlines import store_budget_s
from headwayd.rpc.edge import Context
from headwayd.rpc.engine_port import Engine
from headwayd.rpc.keda import externalscaler_pb2 as keda
from headwayd.rpc.keda import externalscaler_pb2_grpc
from headwayd.rpc.scaler_requests import Trigger, metric_asked_for, trigger_of

SCALER_SERVICE = keda.DESCRIPTOR.services_by_name["ExternalScaler"]
_LOOK_EVERY_S = 1.0


class ScalerServicer(externalscaler_pb2_grpc.ExternalScalerServicer):
    """`externalscaler.ExternalScaler`. What it is asked for stands in the metadata of KEDA's trigger."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def IsActive(self, request: keda.ScaledObjectRef, context: Context) -> keda.IsActiveResponse:
        """Tells whether there is anything for a worker to do."""
        trigger = self._checked(trigger_of(request, self._engine.limits))
        queue = await self._engine.describe(trigger.queue, budget_s=store_budget_s(context))
        return keda.IsActiveResponse(result=scaling.is_active(queue))

    async def StreamIsActive(
        self, request: keda.ScaledObjectRef, context: Context
    ) -> AsyncGenerator[keda.IsActiveResponse, None]:
        """The same at once, and whenever it has changed."""
        trigger = self._checked(trigger_of(request, self._engine.limits))
        budget_s = store_budget_s(context)
        last: bool | None = None
        async with aclosing(self._engine.watch_queue(trigger.queue, _LOOK_EVERY_S, budget_s=budget_s)) as shown:
            async for told in shown:
                active = scaling.is_active(told.queue)
                if active is not last:
                    last = active
                    yield keda.IsActiveResponse(result=active)

    async def GetMetricSpec(self, request: keda.ScaledObjectRef, context: Context) -> keda.GetMetricSpecResponse:
        """Tells the metric's name and its target. Asks no store."""
        del context
        trigger = self._checked(trigger_of(request, self._engine.limits))
        spec = keda.MetricSpec(metricName=trigger.metric_name, targetSizeFloat=trigger.target)
        spec.targetSize = math.ceil(trigger.target)
        return keda.GetMetricSpecResponse(metricSpecs=[spec])

    async def GetMetrics(self, request: keda.GetMetricsRequest, context: Context) -> keda.GetMetricsResponse:
        """Tells the metric's value now."""
        trigger = self._checked(metric_asked_for(request, self._engine.limits))
        value = await self._value(trigger, store_budget_s(context))
        told = keda.MetricValue(metricName=trigger.metric_name, metricValueFloat=value)
        told.metricValue = math.ceil(value)
        return keda.GetMetricsResponse(metricValues=[told])

    def _checked(self, trigger: Trigger) -> Trigger:
        self._engine.check_name(trigger.queue)
        return trigger

    async def _value(self, trigger: Trigger, budget_s: float) -> float:
        if trigger.metric is Metric.PREDICTED_WAIT:
            told = await self._engine.forecast(trigger.queue, budget_s=budget_s)
            return scaling.predicted_wait_s(told.queue, told.eta)
        queue = await self._engine.describe(trigger.queue, budget_s=budget_s)
        return float(scaling.depth(queue)) if trigger.metric is Metric.DEPTH else scaling.oldest_age_s(queue)
