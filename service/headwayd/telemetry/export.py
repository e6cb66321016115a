"""Sends spans where they go, and is quiet about it: what is not taken is counted, and said once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import structlog
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

log: Any = structlog.get_logger(__name__)

# They tell of every batch that fails, and of every span that finds the queue full.
_CHATTY = ("opentelemetry.exporter.otlp.proto.grpc.exporter", "opentelemetry.sdk._shared_internal")


class CountingExporter(SpanExporter):
    """`exporter`, whose failures are logged when they begin and when they are over. Called by one thread at a time."""

    def __init__(self, exporter: SpanExporter, *, endpoint: str) -> None:
        self._exporter = exporter
        self._endpoint = endpoint
        self._is_failing = False
        self._is_closing = False
        self.sent_count = 0
        self.lost_count = 0
        for name in _CHATTY:
            logging.getLogger(name).setLevel(logging.CRITICAL)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """As told. When closing, nothing more is tried once something failed."""
        result = SpanExportResult.FAILURE
        if not (self._is_closing and self._is_failing):
            result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self.sent_count += len(spans)
            if self._is_failing:
                log.info("traces are taken again", endpoint=self._endpoint, lost=self.lost_count)
        else:
            self.lost_count += len(spans)
            if not self._is_failing:
                log.warning("traces are not taken; they are dropped until they are", endpoint=self._endpoint)
        self._is_failing = result is not SpanExportResult.SUCCESS
        return result

    def begin_closing(self) -> None:
        """What is left is sent if it can be sent at once. From any thread."""
        self._is_closing = True
        if self._is_failing:
            self._exporter.shutdown()  # which also ends the pause before a repetition

    def shutdown(self) -> None:
        """Nothing more is sent."""
        if not (self._is_closing and self._is_failing):
            self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is held here."""
        return self._exporter.force_flush(timeout_millis)
