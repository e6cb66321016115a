"""Fixtures of the interop tests: stock clients of the `pressure` protocol on the same store as a live service."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from harness import StoreServer
from interop import clients
from interop.foreign import Foreign
from wire.fixtures import keys, line

__all__ = ["keys", "line"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "client" in metafunc.fixturenames:
        metafunc.parametrize("client", clients.names(), indirect=True)


@pytest.fixture
def client(request: pytest.FixtureRequest) -> clients.QueueClass:
    """A stock client's queue class; a test that asks for it runs once with each."""
    try:
        return clients.load(str(request.param), request.config)
    except clients.NotInstallable as reason:
        clients.skip_or_fail(str(reason))


@pytest.fixture
def make_foreign(
    client: clients.QueueClass, store_server: StoreServer, prefix: str, queue_name: str
) -> Iterator[Callable[..., Foreign]]:
    """Opens further foreign handles on this test's queue: `make_foreign()`. Each is a client of its own."""
    made: list[Foreign] = []
    numbers = itertools.count(1)

    def make(name: str | None = None) -> Foreign:
        made.append(Foreign(client, store_server, prefix, name or queue_name, f"foreign-{next(numbers)}"))
        return made[-1]

    yield make
    for foreign in made:
        foreign.hang_up()


@pytest.fixture
def foreign(make_foreign: Callable[..., Foreign]) -> Foreign:
    """A foreign handle on this test's queue."""
    return make_foreign()
