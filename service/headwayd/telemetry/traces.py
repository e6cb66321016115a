"""Sets up tracing with OpenTelemetry's SDK: who this is, what is recorded, where it goes, and the flush at the end.

Calls are never held up: spans go to a bounded queue, which a thread of the SDK empties. What does not fit is dropped.
Variables of the SDK that this file does not decide are in force: OTEL_EXPORTER_OTLP_HEADERS and _CERTIFICATE,
OTEL_BSP_MAX_QUEUE_SIZE, OTEL_RESOURCE_ATTRIBUTES, OTEL_SERVICE_NAME and others.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import structlog
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from headwayd import __version__
from headwayd.telemetry.export import CountingExporter
from headwayd.telemetry.identity import resource_of, timeout_of
from headwayd.telemetry.jobs import Jobs
from headwayd.telemetry.sampling import sampler

log: Any = structlog.get_logger(__name__)

_EXPORT_S = 3.0  # for one batch, repetitions included; OTEL_EXPORTER_OTLP_TIMEOUT says otherwise


class _CountingProcessor(BatchSpanProcessor):
    ended_count = 0

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled:
            self.ended_count += 1
        super().on_end(span)


class Traces:
    """Tracing of one process, from here to `close`. `endpoint` is http://HOST:PORT or https://HOST:PORT of an OTLP
    receiver (gRPC); `ratio` the share of jobs recorded of those that nobody has decided about; `process` names this
    process among its like."""

    def __init__(self, *, endpoint: str, ratio: float, process: str) -> None:
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=timeout_of("TRACES", _EXPORT_S))
        self._exporter = CountingExporter(exporter, endpoint=endpoint)
        self._processor = _CountingProcessor(self._exporter)
        self._provider = TracerProvider(
            sampler=sampler(ratio),
            resource=resource_of(process),
            shutdown_on_exit=False,  # `close` does it, in order
        )
        self._provider.add_span_processor(self._processor)
        self.jobs = Jobs(self._provider.get_tracer("headwayd", __version__), ratio=ratio)

    async def close(self) -> None:
        """Sends what is left, if somebody takes it. In a thread that nobody waits for when this is cancelled."""
        self.jobs.close()
        self._exporter.begin_closing()
        loop = asyncio.get_running_loop()
        is_done = asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile
                loop.call_soon_threadsafe(is_done.set)

        threading.Thread(target=shut_down, name="flush-traces", daemon=True).start()
        await is_done.wait()
        lost = self._processor.ended_count - self._exporter.sent_count
        if lost:
            log.warning("traces were lost", spans=lost, sent=self._exporter.sent_count)
