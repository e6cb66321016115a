"""The harness itself: servers that can be hurt, and a wire that can fail."""

from collections.abc import Callable

import pytest
import redis

from harness import FaultProxy, StoreServer, eventually


def test_a_killed_store_comes_back_with_its_data(fresh_store_server: StoreServer) -> None:
    with fresh_store_server.client() as client:
        client.set("a", "1")
    fresh_store_server.kill()
    fresh_store_server.restart()
    with fresh_store_server.client() as client:
        assert client.get("a") == b"1"


def test_a_paused_store_is_silent_until_resumed(fresh_store_server: StoreServer) -> None:
    fresh_store_server.pause()
    with fresh_store_server.client(timeout_s=0.2) as client:
        with pytest.raises(redis.TimeoutError):
            client.ping()
        fresh_store_server.resume()
        assert client.ping()


def test_a_shared_store_answers_raw_commands(redis_client: redis.Redis, prefix: str) -> None:
    redis_client.set(f"{prefix}:harness", b"1", ex=10)
    assert redis_client.delete(f"{prefix}:harness") == 1


async def test_the_proxy_refuses_goes_silent_and_loses_replies(
    store_server: StoreServer, prefix: str, make_client: Callable[[str], redis.asyncio.Redis]
) -> None:
    async with FaultProxy(store_server.port) as proxy, make_client(proxy.url) as client:
        assert await client.ping()
        proxy.cut()
        with pytest.raises(redis.ConnectionError):
            await client.ping()
        proxy.restore()
        assert await client.ping()
        proxy.silent = True
        with pytest.raises(redis.TimeoutError):
            await client.ping()
        proxy.restore()
        await client.delete(f"{prefix}:proxy")
        proxy.drop_replies = 1.0
        with pytest.raises(redis.ConnectionError):
            await client.incr(f"{prefix}:proxy")
        proxy.restore()
        assert await client.getdel(f"{prefix}:proxy") == b"1"  # done, though the answer was lost
        proxy.reset_mid_reply = 1.0
        with pytest.raises(redis.ConnectionError):
            await client.ping()


@pytest.fixture
def make_client() -> Callable[[str], redis.asyncio.Redis]:
    def make(url: str) -> redis.asyncio.Redis:
        retry = redis.asyncio.retry.Retry(redis.backoff.NoBackoff(), 0)
        return redis.asyncio.Redis.from_url(url, protocol=2, retry=retry, socket_timeout=0.3)

    return make


async def test_eventually_tells_what_it_saw_last() -> None:
    with pytest.raises(AssertionError, match="last seen: 0"):
        await eventually(lambda: 0, within=0.05)
