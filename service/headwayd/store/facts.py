"""Asks the store what it is and what it promises, and says what an operator should know."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from headwayd.domain.errors import InternalError, StoreUnavailable
from headwayd.domain.model import StoreFacts
from headwayd.store.connections import RUN, info_of
from headwayd.store.durability import MEMORY, ORDER, REPLICATED, Demand, found_in, refusal_of
from headwayd.store.link import Link
from headwayd.store.several import ask_each
from headwayd.store.trouble import checked

# The oldest releases without known defects that concern queues, per line of Valkey.
_VALKEY_FLOOR = {(9, 1): (9, 1, 1), (9, 0): (9, 0, 5), (8, 1): (8, 1, 9)}
_REDIS_FLOOR = (7, 0, 0)

# All in one question: where answers take long, one after the other would not come in time.
_INFO = tuple(("INFO", section) for section in ("server", "memory", "persistence", "replication"))
_CONFIG = ("CONFIG", "GET", "appendfsync", "min-replicas-to-write", "min-replicas-max-lag")
_TIME = "server_time_usec"


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


async def ask_facts(
    links: Sequence[Link],
    demand: Demand,
    *,
    note: Callable[[Link, StoreFacts], None],
    is_embedded: bool,
    prefix: str,
    within_s: float,
) -> StoreFacts:
    """What the store is now; of several servers, what holds for all that answer. What each says goes to `note` as soon
    as it is known. Raises StoreUnavailable."""

    async def ask(link: Link) -> StoreFacts:
        facts = await _ask_one(link, demand)
        note(link, facts)
        return facts

    each = await ask_each(links, ask, within_s=within_s)
    missing = len(links) - len(each)
    weakest = min(each, key=lambda facts: ORDER.index(facts.durability))
    return replace(
        weakest,
        version=min((facts.version for facts in each), key=_numbers),
        is_embedded=is_embedded,
        prefix=prefix,
        warnings=(
            *dict.fromkeys(warning for facts in each for warning in facts.warnings),
            *([f"{missing} of {len(links)} primaries do not answer"] if missing else []),
        ),
        refusal=next((facts.refusal for facts in each if facts.refusal), ""),
    )


async def _ask_one(link: Link, demand: Demand) -> StoreFacts:
    loop = asyncio.get_running_loop()
    asked_at = loop.time()
    *told, pairs = await link.commands(*_INFO, _CONFIG)
    heard_at = loop.time()
    info: dict[str, str] = {}
    for text in told:
        info |= info_of(checked(text))
    if _TIME in info:
        link.clock.hear(int(info[_TIME]), asked_at=asked_at, heard_at=heard_at)
    config = _config(pairs)
    kind = "valkey" if "valkey_version" in info or info.get("server_name") == "valkey" else "redis"
    version = info.get("valkey_version") or info.get("redis_version", "")
    found, durability_warning = found_in(info, config)
    refusal = refusal_of(demand, found, info, config)
    if demand.profile == MEMORY:
        durability_warning = None  # it is what was asked for
    eviction = info.get("maxmemory_policy", "noeviction")
    eviction_warning = (
        f"maxmemory-policy is {eviction}: the store may evict messages; set it to noeviction"
        if eviction != "noeviction"
        else None
    )
    warnings = (_version_warning(kind, version), durability_warning, eviction_warning, refusal)
    return StoreFacts(
        kind=kind,
        version=version,
        is_reachable=True,
        durability=REPLICATED if demand.profile == REPLICATED and refusal is None else found,
        warnings=tuple(warning for warning in warnings if warning),
        refusal=refusal or "",
        run=info.get(RUN, ""),
    )


def _config(reply: Any) -> dict[str, str] | None:
    """The settings that durability depends on, or None where an operator has taken CONFIG away."""
    try:
        pairs = checked(reply)
    except InternalError:  # an unknown command: renamed away
        return None
    except StoreUnavailable as error:
        if error.metadata.get("cause") == "STORE":  # not permitted
            return None
        raise
    return {name.decode(): value.decode() for name, value in zip(pairs[::2], pairs[1::2], strict=True)}
