"""The stock clients themselves, without Headway: that our shim changes nothing the protocol knows of."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from interop.clients import QueueClass
from interop.foreign import Foreign
from wire.calls import Keys


@pytest.fixture
def queue_name(request: pytest.FixtureRequest, redis_client: redis.Redis, prefix: str) -> Iterator[str]:
    """A name that nobody else uses, without asking the service for anything."""
    name = f"stock-{abs(hash(request.node.nodeid))}"
    yield name
    for key in redis_client.scan_iter(match=f"{prefix}:{name}*"):
        redis_client.delete(key)


async def test_a_stock_queue_passes_messages_between_two_stock_clients(
    make_foreign: Callable[..., Foreign],
) -> None:
    producer, consumer = make_foreign(), make_foreign()
    await producer.call("create", 2)
    await producer.call("put", b"one")
    await producer.call("put", b"two")
    assert [await consumer.call("get"), await consumer.call("get")] == [b"one", b"two"]
    await producer.call("close")
    with pytest.raises(consumer.errors.QueueClosedError):
        await consumer.call("get")
    await consumer.call("delete")


async def test_a_stock_create_makes_four_of_the_twelve_keys(foreign: Foreign, keys: Keys) -> None:
    await foreign.call("create", 3)
    assert keys.suffixes() == {"bound", "producer_free", "consumer_free", "not_full"}


async def test_a_blocked_stock_get_ends_with_the_close(make_foreign: Callable[..., Foreign]) -> None:
    producer, consumer = make_foreign(), make_foreign()
    await producer.call("create")
    blocked = await consumer.block("get")
    await producer.call("close")
    with pytest.raises(consumer.errors.QueueClosedError):
        await blocked


async def test_iteration_ends_when_the_queue_is_closed(make_foreign: Callable[..., Foreign]) -> None:
    producer, consumer = make_foreign(), make_foreign()
    await producer.call("create")
    await producer.call("put", b"last")
    await producer.call("close")
    assert await consumer.call("__next__") == b"last"
    with pytest.raises(RuntimeError, match="StopIteration"):
        await consumer.call("__next__")


async def test_the_variants_differ_in_what_a_get_from_an_over_full_queue_does(
    client: QueueClass, make_foreign: Callable[..., Foreign], keys: Keys
) -> None:
    first = make_foreign()
    await first.call("create", 1)
    second = make_foreign()  # after the create: a handle learns the bound when it is opened
    await first.call("put", b"one")
    await first.call("put", b"two", block=False, allow_overfilling=True)
    await second.call("get")
    assert keys.is_not_full is not client.behaves_as_newest


async def test_a_newest_peek_takes_the_producers_role_and_an_old_one_the_consumers(
    client: QueueClass, make_foreign: Callable[..., Foreign], keys: Keys
) -> None:
    peeker = make_foreign()
    await peeker.call("create")
    await peeker.call("put", b"one")
    free, taken = ("consumer", "producer") if client.behaves_as_newest else ("producer", "consumer")
    keys.client.delete(keys[f"{taken}_free"])
    with pytest.raises(peeker.errors.QueueInUseError) as error:
        await peeker.call("peek_reverse_nowait")
    assert error.value.role == taken
    keys.client.lpush(keys[f"{taken}_free"], 0)
    keys.client.delete(keys[f"{free}_free"])
    assert await peeker.call("peek_reverse_nowait") == b"one"
