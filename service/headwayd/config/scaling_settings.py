"""The settings of what the service tells those who scale workers."""

from __future__ import annotations

from pydantic_settings import BaseSettings

from headwayd.config.fields import setting


class ScalingSettings(BaseSettings):
    """A part of `Settings`."""

    keda: bool = setting(
        False,
        "Answer KEDA, as an external scaler of its, on the same addresses: it scales workers by what waits in a queue. "
        "Off where nobody asks.",
    )
