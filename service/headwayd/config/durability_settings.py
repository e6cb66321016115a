"""The settings of what an accepted message survives."""

from __future__ import annotations

from typing import Literal

from pydantic_settings import BaseSettings

from headwayd.config.fields import setting


class DurabilitySettings(BaseSettings):
    """A part of `Settings`."""

    durability: Literal["auto", "memory", "everysec", "always", "replicated"] = setting(
        "auto",
        "What an accepted message is to survive. auto takes the store as it is and says what that is. The others are "
        "demanded: a store that keeps less is not begun with, and nothing is written to one that comes to keep less. "
        "everysec and always are appendfsync's; memory is content with none; replicated waits for `min_replicas`. The "
        "embedded store is run as demanded.",
    )
    min_replicas: int = setting(
        1,
        "With durability replicated: how many replicas have a message before it counts as accepted. The store's own "
        "min-replicas-to-write must be at least this.",
        unit="replicas",
        ge=1,
        le=10,
    )
