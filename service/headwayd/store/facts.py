"""Asks the store what it is and what it promises, and says what an operator should know."""

from __future__ import annotations

import re

from headwayd.domain.errors import InternalError, StoreUnavailable
from headwayd.domain.model import StoreFacts
from headwayd.store.link import Link

# The oldest releases without known defects that concern queues, per line of Valkey.
_VALKEY_FLOOR = {(9, 1): (9, 1, 1), (9, 0): (9, 0, 5), (8, 1): (8, 1, 9)}
_REDIS_FLOOR = (7, 0, 0)


def _info(text: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.decode("utf-8", "replace").splitlines() if ":" in line)
    return {key: value for key, _, value in pairs}


def _numbers(version: str) -> tuple[int, int, int]:
    found = [int(number) for number in re.findall(r"\d+", version)[:3]]
    major, minor, patch = (*found, 0, 0, 0)[:3]
    return major, minor, patch


def _version_warning(kind: str, version: str) -> str | None:
    numbers = _numbers(version)
    if kind == "redis":
        floor = _REDIS_FLOOR
    else:
        floor = _VALKEY_FLOOR.get(numbers[:2], (8, 1, 9) if numbers < (8, 1, 0) else numbers)
    if numbers >= floor:
        return None
    return f"{kind} {version} is older than {'.'.join(map(str, floor))}: upgrade it"


def _durability(info: dict[str, str], fsync: str | None) -> tuple[str, str | None]:
    if info.get("aof_enabled") != "1":
        return "memory", "the append-only file is off: a restart of the store loses every message"
    if fsync == "always":
        return "always", None
    if fsync == "no":
        return "memory", "appendfsync is 'no': a power loss may lose the last half minute"
    return "everysec", None if fsync else "appendfsync could not be read; everysec is assumed"


async def ask_facts(link: Link, *, is_embedded: bool, prefix: str) -> StoreFacts:
    """What the store is now. Raises StoreUnavailable."""
    info: dict[str, str] = {}
    for section in ("server", "memory", "persistence"):
        info |= _info(await link.command("INFO", section))
    fsync: str | None = None
    configured = await _config(link)
    if isinstance(configured, list) and len(configured) == 2:
        fsync = configured[1].decode()
    kind = "valkey" if "valkey_version" in info or info.get("server_name") == "valkey" else "redis"
    version = info.get("valkey_version") or info.get("redis_version", "")
    durability, durability_warning = _durability(info, fsync)
    eviction = info.get("maxmemory_policy", "noeviction")
    eviction_warning = (
        f"maxmemory-policy is {eviction}: the store may evict messages; set it to noeviction"
        if eviction != "noeviction"
        else None
    )
    warnings = (_version_warning(kind, version), durability_warning, eviction_warning)
    return StoreFacts(
        kind=kind,
        version=version,
        is_reachable=True,
        is_embedded=is_embedded,
        durability=durability,
        warnings=tuple(warning for warning in warnings if warning),
        prefix=prefix,
    )


async def _config(link: Link) -> object:
    """The fsync setting, or None where an operator has taken CONFIG away."""
    try:
        return await link.command("CONFIG", "GET", "appendfsync")
    except InternalError:  # an unknown command: renamed away
        return None
    except StoreUnavailable as error:
        if error.metadata.get("cause") == "STORE":  # not permitted
            return None
        raise
