"""Who this process is in what it sends by OTLP, and what the variables of OpenTelemetry's SDK say of the sending."""

from __future__ import annotations

import os
from collections.abc import Mapping

from opentelemetry.sdk.resources import OTELResourceDetector, Resource

from headwayd import __version__


def resource_of(process: str) -> Resource:
    """What is told of this process; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win."""
    return Resource.create(_who(process))


def timeout_of(kind: str, unless_told_s: float) -> float | None:
    """How long sending one batch of such a kind, TRACES or METRICS, may take; None: as a variable says."""
    is_told = any(os.environ.get(f"OTEL_EXPORTER_OTLP_{name}") for name in ("TIMEOUT", f"{kind}_TIMEOUT"))
    return None if is_told else unless_told_s


def is_disabled() -> bool:
    """Whether nothing is to be sent at all."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def _who(process: str) -> Mapping[str, str]:
    ours = {"service.name": "headway", "service.version": __version__, "service.instance.id": process}
    told = OTELResourceDetector().detect().attributes
    return {name: value for name, value in ours.items() if not told.get(name)}  # what is told empty is not told
