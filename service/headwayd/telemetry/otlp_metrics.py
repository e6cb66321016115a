"""Sends the metrics by OTLP, every now and then and once more at the end.

The exporter is OpenTelemetry's; what it is given is made from the same reading that Prometheus scrapes, in place of
instruments of its SDK: to count with those takes ten times as long, and they have no histogram that is read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import structlog
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import export as otel
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from headwayd import __version__
from headwayd.telemetry import metric_names as names
from headwayd.telemetry.identity import resource_of, timeout_of
from headwayd.telemetry.metric_names import Kind
from headwayd.telemetry.metrics import Metrics
from headwayd.telemetry.reading import Buckets, Reading, Series

_TIMEOUT_S: Final = 5  # OTEL_EXPORTER_OTLP_TIMEOUT says otherwise
_CUMULATIVE: Final = otel.AggregationTemporality.CUMULATIVE
log: Any = structlog.get_logger(__name__)


class OtlpMetrics:
    """Sends to `endpoint`, a URL; `process` names this process among those of the service."""

    def __init__(self, metrics: Metrics, *, endpoint: str, every: timedelta, process: str) -> None:
        self._metrics = metrics
        self._endpoint = endpoint
        self._is_failing = False
        self._every_s = every.total_seconds()
        self._started_ns = time.time_ns()
        self._resource = resource_of(process)
        self._exporter = OTLPMetricExporter(endpoint=endpoint, timeout=timeout_of("METRICS", _TIMEOUT_S))

    async def run(self) -> None:
        """Sends until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            # Each worker sends its own: the receiver tells them apart by their instance.
            await self._send(await self._metrics.read(of_all=False))

    async def close(self) -> None:
        """Sends the last numbers, without the store's, which has gone, and closes the connection. Takes little longer
        than the exporter's time-out."""
        await self._send(self._metrics.own())
        await asyncio.to_thread(self._exporter.shutdown, 1_000)

    async def _send(self, reading: Reading) -> None:
        """That they are not taken is logged when it begins and when it is over, as of traces."""
        try:
            result = await asyncio.to_thread(lambda: self._exporter.export(self._data(reading)))
        except Exception:  # loop guard: what fails today may go tomorrow
            log.exception("metrics were not sent")
            return
        is_failing = result is not otel.MetricExportResult.SUCCESS
        if is_failing and not self._is_failing:
            log.warning("metrics are not taken; they are tried anew at each interval", endpoint=self._endpoint)
        elif self._is_failing and not is_failing:
            log.info("metrics are taken again", endpoint=self._endpoint)
        self._is_failing = is_failing

    def _data(self, reading: Reading) -> otel.MetricsData:
        scope = InstrumentationScope("headwayd", __version__)
        metrics = [
            self._metric(metric, series) for metric in names.ALL if (series := reading.get(metric.name)) is not None
        ]
        scopes = [otel.ScopeMetrics(scope, metrics, schema_url="")]
        return otel.MetricsData([otel.ResourceMetrics(self._resource, scopes, schema_url="")])

    def _metric(self, metric: names.Metric, series: Series) -> otel.Metric:
        data: otel.DataT
        match metric.kind:
            case Kind.COUNTER:
                data = otel.Sum(list(self._numbers(metric, series)), _CUMULATIVE, is_monotonic=True)
            case Kind.GAUGE:
                data = otel.Gauge(list(self._numbers(metric, series)))
            case Kind.HISTOGRAM:
                data = otel.Histogram(list(self._histograms(metric, series)), _CUMULATIVE)
        return otel.Metric(name=metric.name, description=metric.text, unit=metric.unit, data=data)

    def _numbers(self, metric: names.Metric, series: Series) -> Iterator[otel.NumberDataPoint]:
        now_ns = time.time_ns()
        for labels, value in series.items():
            assert isinstance(value, int | float)
            attributes = dict(zip(metric.labels, labels, strict=True))
            yield otel.NumberDataPoint(attributes, self._started_ns, now_ns, value)

    def _histograms(self, metric: names.Metric, series: Series) -> Iterator[otel.HistogramDataPoint]:
        now_ns = time.time_ns()
        for labels, value in series.items():
            assert isinstance(value, Buckets)
            yield otel.HistogramDataPoint(
                attributes=dict(zip(metric.labels, labels, strict=True)),
                start_time_unix_nano=self._started_ns,
                time_unix_nano=now_ns,
                count=sum(value.counts),
                sum=value.total,
                bucket_counts=value.counts,
                explicit_bounds=value.bounds,
                # Nobody keeps these two, and the schema lets them be absent.
                min=None,  # type: ignore[arg-type]
                max=None,  # type: ignore[arg-type]
            )
