"""What unit tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headwayd.engine.tasks import Tasks


@pytest.fixture
async def tasks() -> AsyncIterator[Tasks]:
    """Those of a process; ended behind the test."""
    made = Tasks()
    yield made
    await made.close()
