"""What the tests of single steps share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from harness import StoreServer
from headwayd.engine.tasks import Tasks
from integration.desk import Desk, desk_at, queue_of


@pytest.fixture
async def desk(store_server: StoreServer, request: pytest.FixtureRequest) -> AsyncIterator[Desk]:
    async with desk_at(store_server, queue_of(request)) as made:
        yield made


@pytest.fixture
async def tasks(desk: Desk) -> AsyncIterator[Tasks]:
    """Of an engine's part, on a store that hears hints, with the desk's queue."""
    made = Tasks()
    await desk.create()
    await desk.store.start()
    desk.store.on_hint(lambda _queue, _is_call: None)
    yield made
    await made.close()
