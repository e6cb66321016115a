"""A client that is closed: whatever is begun with it raises ClientClosed."""

from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

import headway
from headway.core import watch


async def _first(answers: Any) -> None:
    async with aclosing(answers) as open_ones:
        await anext(open_ones)


@pytest.mark.parametrize(
    "lasting",
    [
        lambda queue: _first(queue.watch("a")),
        lambda queue: queue.wait_for("a"),
        lambda queue: _first(queue.watch_queue()),
        lambda queue: _first(queue.watch_blocked("me")),
        lambda queue: _first(queue.redrive()),
        lambda queue: _first(watch(queue.client.connection, "q", ["a"])),
        lambda queue: _first(queue.client.connection.stream(queue.client.connection.queues.WatchQueue, None)),
    ],
    ids=["watch", "wait_for", "watch_queue", "watch_blocked", "redrive", "core", "stream"],
)
async def test_whatever_lasts_is_refused_behind_the_close(
    queue: headway.Queue, lasting: Callable[[headway.Queue], Any]
) -> None:
    await queue.describe()
    await queue.client.server_info()  # both stubs are there
    await queue.client.close()
    with pytest.raises(headway.ClientClosed):
        await lasting(queue)
