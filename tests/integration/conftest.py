"""What the tests of single steps share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from harness import StoreServer
from integration.desk import Desk, desk_at, queue_of


@pytest.fixture
async def desk(store_server: StoreServer, request: pytest.FixtureRequest) -> AsyncIterator[Desk]:
    async with desk_at(store_server, queue_of(request)) as made:
        yield made
