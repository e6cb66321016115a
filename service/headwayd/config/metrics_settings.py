"""The settings of metrics."""

from __future__ import annotations

from datetime import timedelta

from pydantic_settings import BaseSettings

from headwayd.config.fields import Span, setting


class MetricsSettings(BaseSettings):
    """A part of `Settings`."""

    metrics_queues: int = setting(
        200,
        "How many queues get series of their own; those first seen do, and the rest are summed under one value. Each "
        "costs about 40 lines of /metrics, and one question to the store when they are read.",
        unit="queues",
        ge=0,
        le=5_000,
    )
    metrics_interval: Span = setting(
        timedelta(seconds=30),
        "How often metrics are sent, where otlp_endpoint says where to.",
        unit="span",
        ge=timedelta(seconds=1),
        le=timedelta(hours=1),
    )
