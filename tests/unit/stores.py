"""Stores as unit tests make them: of servers that are not there."""

from __future__ import annotations

from datetime import timedelta

from headwayd.store.durability import AUTO, Demand
from headwayd.store.redis_store import RedisStore


def store_of_nobody(profile: str = AUTO, *, scheme: str = "redis", call_timeout_s: float = 2.0) -> RedisStore:
    """One that demands this durability of a server that nobody runs. To be closed."""
    return RedisStore(
        f"{scheme}://127.0.0.1:1",
        prefix="p",
        process="headway/test/1/0",
        embedded=False,
        call_timeout=timedelta(seconds=call_timeout_s),
        demand=Demand(profile),
    )
