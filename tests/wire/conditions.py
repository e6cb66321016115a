"""What tests wait for with `eventually`, said of one queue."""

from __future__ import annotations

from wire.calls import Line


async def consumers_wait(line: Line, count: int = 1) -> bool:
    """So many stand in the consumer line."""
    return (await line.describe()).counts.consumers_waiting == count


async def producers_wait(line: Line, count: int = 1) -> bool:
    """So many stand in the producer line."""
    return (await line.describe()).counts.producers_waiting == count


async def leased(line: Line, count: int) -> bool:
    """So many messages are leased."""
    return (await line.counts()).leased == count


async def has_dead(line: Line, count: int) -> bool:
    """So many messages are dead."""
    return (await line.counts()).dead == count
