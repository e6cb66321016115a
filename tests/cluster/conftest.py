"""Fixtures of the tests with several store servers: services on Sentinels, and on a cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from faults.conftest import Open, Serve, open_line, serve
from harness.engines import ClusterOfSix, SentinelTrio

__all__ = ["Open", "Serve", "open_line", "serve"]
# Replicated needs it of every server that may become the primary.
REPLICATED = ("--min-replicas-to-write", "1", "--min-replicas-max-lag", "10")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """They take minutes: outside `make test-cluster` only those marked `smoke`, on one store."""
    if os.environ.get("HEADWAY_CLUSTER") == "all":
        return
    unwanted = [item for item in items if item.path.parent == Path(__file__).parent and not _is_smoke(item)]
    config.hook.pytest_deselected(items=unwanted)
    items[:] = [item for item in items if item not in set(unwanted)]


def _is_smoke(item: pytest.Item) -> bool:
    return item.get_closest_marker("smoke") is not None and "[valkey" in item.name


@pytest.fixture
async def trio(store_kind: str, short_dir: Path) -> AsyncIterator[SentinelTrio]:
    """A primary, two replicas and three Sentinels of this test's own."""
    made = SentinelTrio(store_kind, short_dir, options=REPLICATED)
    try:
        await asyncio.to_thread(made.start)
        yield made
    finally:
        await asyncio.to_thread(made.stop)


@pytest.fixture
async def cluster(store_kind: str, short_dir: Path) -> AsyncIterator[ClusterOfSix]:
    """Three primaries and three replicas of this test's own."""
    made = ClusterOfSix(store_kind, short_dir, options=REPLICATED)
    try:
        await asyncio.to_thread(made.start)
        yield made
    finally:
        await asyncio.to_thread(made.stop)
