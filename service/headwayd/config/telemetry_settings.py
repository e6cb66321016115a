"""The settings of traces and of metrics that are sent."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from pydantic import field_validator
from pydantic_settings import BaseSettings

from headwayd.config.fields import setting


class TelemetrySettings(BaseSettings):
    """A part of `Settings`."""

    otlp_endpoint: str | None = setting(
        None,
        "Where to send traces and metrics by OTLP over gRPC: http://HOST:PORT, or https:// with TLS. Credentials, "
        "certificates and the like are given as the variables OTEL_EXPORTER_OTLP_… of OpenTelemetry's SDK.",
        unit="URL",
        shown="(none: nothing is sent)",
    )
    trace_ratio: float = setting(
        0.01,
        "The share of jobs that are traced among those that nobody has decided about: a caller that carries a trace "
        "has decided. A traced job of one Put, Get and Ack costs the process about 0.7 ms more.",
        unit="share",
        ge=0.0,
        le=1.0,
    )

    @field_validator("otlp_endpoint")
    @classmethod
    def _check_otlp_endpoint(cls, url: str | None) -> str | None:
        if url is None:
            return None
        if not re.fullmatch(r"https?://[^/@?#\s]+/?", url):
            raise ValueError("must be http://HOST:PORT or https://HOST:PORT")
        try:
            urlsplit(url).port  # noqa: B018 - reading it is what checks it
        except ValueError:
            raise ValueError("has a port that is none: 1 to 65535") from None
        return url
