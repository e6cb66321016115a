"""What the drivers of peers are given to do in tests."""

from __future__ import annotations

from typing import Any

from bench.peers.driving import BATCH, Task


def task(
    driver: str = "",
    *,
    count: int,
    address: str = "",
    clients: int = 1,
    options: dict[str, Any] | None = None,
    batch: int = BATCH,
) -> Task:
    """A task of a process that has all the clients."""
    return Task(
        driver=driver,
        role="take",
        address=address,
        queue="q",
        count=count,
        size=64,
        clients=clients,
        first=0,
        of=clients,
        fifo="",
        tally="",
        options=options or {},
        batch=batch,
    )
