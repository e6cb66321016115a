"""What a server's settings promise of messages that it has accepted, and whether that is what was asked for.

| profile | an accepted message is lost by |
|---|---|
| memory | any end of the server |
| everysec | a power loss: what came in the last second or two |
| always | the loss of the disk |
| replicated | the loss of the primary and `min_replicas` others at once |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MEMORY, EVERYSEC, ALWAYS, REPLICATED, AUTO = "memory", "everysec", "always", "replicated", "auto"
ORDER = (MEMORY, EVERYSEC, ALWAYS, REPLICATED)  # from the weakest


@dataclass(frozen=True, slots=True)
class Demand:
    """The durability that was asked for: a profile, or "auto" for whatever is found; `min_replicas` is for
    "replicated"."""

    profile: str = AUTO
    min_replicas: int = 1

    @property
    def waits_for(self) -> int:
        """How many replicas have what is written before it is answered."""
        return self.min_replicas if self.profile == REPLICATED else 0


def found_in(info: Mapping[str, str], config: Mapping[str, str] | None) -> tuple[str, str | None]:
    """The profile that one server keeps by its own disk, and what an operator should know. `config` is None where it
    may not be read."""
    if info.get("aof_enabled") != "1":
        return MEMORY, "the append-only file is off: a restart of the store loses every message"
    fsync = None if config is None else config.get("appendfsync")
    if fsync == "no":
        return MEMORY, "appendfsync is 'no': a power loss may lose the last half minute"
    if fsync == ALWAYS:
        return ALWAYS, None
    return EVERYSEC, None if fsync else "appendfsync could not be read; everysec is assumed"


def refusal_of(demand: Demand, found: str, info: Mapping[str, str], config: Mapping[str, str] | None) -> str | None:
    """Why a server does not keep what was asked for, or None if it does. That replicas are missing at the moment is
    none: the server itself then refuses to write."""
    if demand.profile == REPLICATED:
        return _replicas_refusal(demand.min_replicas, info, config)
    if demand.profile == AUTO or ORDER.index(found) >= ORDER.index(demand.profile):
        return None
    if demand.profile == ALWAYS and config is None:
        return "durability 'always' is asked for, and CONFIG GET appendfsync is not allowed: it cannot be checked"
    return f"durability {demand.profile!r} is asked for, and the store keeps {found!r}"


def _replicas_refusal(wanted: int, info: Mapping[str, str], config: Mapping[str, str] | None) -> str | None:
    if config is None:
        # Told only where both min-replicas-to-write and min-replicas-max-lag are set.
        if "min_slaves_good_slaves" in info:
            return None
        return "durability 'replicated' is asked for, and min-replicas-to-write is 0, or min-replicas-max-lag is"
    least = int(config.get("min-replicas-to-write", 0))
    if least < wanted:
        return f"durability 'replicated' is asked for, and min-replicas-to-write is {least}: set it to {wanted}"
    if config.get("min-replicas-max-lag") == "0":  # then the server does not look at all how many there are
        return "durability 'replicated' is asked for, and min-replicas-max-lag is 0: set it to 10"
    return None
