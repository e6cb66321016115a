"""The harness itself: servers that can be hurt, and a wire that can fail."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import redis

from harness import FaultProxy, ServiceProcess, StoreServer, eventually
from harness.template import Template, can_fork


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


@pytest.fixture
def template(monkeypatch: pytest.MonkeyPatch) -> Iterator[Template]:
    """A template of this test's own: end it."""
    made = Template()
    monkeypatch.setattr(ServiceProcess, "template", made)
    yield made
    made.close()


@pytest.mark.skipif(not can_fork(), reason="services are forked on Linux only")
@pytest.mark.any_store
async def test_a_forked_service_is_a_process_of_its_own(
    template: Template, store_server: StoreServer, make_service: Callable[..., ServiceProcess], short_dir: Path
) -> None:
    made = [make_service(HEADWAY_REDIS_URL=store_server.url, PRESSURE_PREFIX=f"__{n}__") for n in range(3)]
    for service in made:
        assert os.getsid(service.pid) == service.pid
        assert service.log.exists()
        # Nothing of its siblings is open in it: input, output, log, and what it opened itself.
        files = {Path(file.path) for file in psutil.Process(service.pid).open_files()}
        assert files <= {Path(os.devnull), service.log}
    parent = psutil.Process(made[0].pid).ppid()
    assert {psutil.Process(service.pid).ppid() for service in made} == {parent}
    assert parent != os.getpid()
    assert made[0].kill() == -signal.SIGKILL
    assert made[1].stop() == 0
    refused = make_service(start=False, HEADWAY_REDIS_URL="nonsense")
    refused.launch()
    assert refused.wait() == 2
    assert "HEADWAY_REDIS_URL" in refused.log.read_text()
    template.close()
    assert made[2].wait() is not None
    await eventually(lambda: not psutil.pid_exists(made[2].pid))
