"""The settings of traces and of metrics that are sent."""

from __future__ import annotations

import re

from pydantic import field_validator
from pydantic_settings import BaseSettings

from headwayd.config.fields import setting


class TelemetrySettings(BaseSettings):
    """A part of `Settings`."""

    otlp_endpoint: str | None = setting(
        None,
        "Where to send telemetry by OTLP over gRPC: http://HOST:PORT, or https:// with TLS.",
        unit="URL",
        shown="(none: nothing is sent)",
    )

    @field_validator("otlp_endpoint")
    @classmethod
    def _check_otlp_endpoint(cls, url: str | None) -> str | None:
        if url is not None and not re.fullmatch(r"https?://[^/@?#\s]+/?", url):
            raise ValueError("must be http://HOST:PORT or https://HOST:PORT")
        return url
