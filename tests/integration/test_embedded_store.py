"""The embedded store: one service per folder, nothing lost when it is killed, nothing left when it is gone."""

import asyncio
import errno
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import psutil
import pytest
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from harness import ServiceProcess, eventually, refused
from headway.v1 import message_pb2, queue_service_pb2, queue_service_pb2_grpc
from headwayd.store.data_folder import EmbeddedStoreFailed, Lock, socket_path
from headwayd.store.embedded import EmbeddedStore

pytestmark = pytest.mark.true_start

MakeService = Callable[..., ServiceProcess]
Connect = Callable[[str], grpc.aio.Channel]


def store_process(service: ServiceProcess) -> psutil.Process:
    """The valkey-server that a service runs."""
    found = [child for child in psutil.Process(service.pid).children(recursive=True) if "valkey" in child.name()]
    assert len(found) == 1, found
    return found[0]


async def put(channel: grpc.aio.Channel, queue: str, payloads: list[bytes]) -> None:
    stub = queue_service_pb2_grpc.QueueServiceStub(channel)
    await stub.Create(queue_service_pb2.CreateRequest(queue=queue), timeout=5)
    messages = [message_pb2.Message(payload=payload) for payload in payloads]
    await stub.Put(queue_service_pb2.PutRequest(queue=queue, messages=messages), timeout=5)


async def take(channel: grpc.aio.Channel, queue: str) -> list[bytes]:
    stub = queue_service_pb2_grpc.QueueServiceStub(channel)
    answer = await stub.Get(queue_service_pb2.GetRequest(queue=queue, max_messages=1000), timeout=5)
    return [delivery.message.payload for delivery in answer.deliveries]


async def test_a_killed_service_loses_nothing_and_starts_again_at_once(
    make_service: MakeService, connect: Connect, short_dir: Path
) -> None:
    folder = str(short_dir / "kept")
    payloads = [b"%d" % number for number in range(500)]
    first = make_service(HEADWAY_DATA_DIR=folder)
    async with connect(first.address) as channel:
        await put(channel, "kept", payloads)
    first.kill()
    second = make_service(HEADWAY_DATA_DIR=folder)  # waits for the orphan by itself
    async with connect(second.address) as channel:
        assert await take(channel, "kept") == payloads


async def test_a_clean_stop_leaves_no_process_and_keeps_the_data(
    make_service: MakeService, connect: Connect, short_dir: Path
) -> None:
    folder = str(short_dir / "kept")
    first = make_service(HEADWAY_DATA_DIR=folder)
    server = store_process(first)
    async with connect(first.address) as channel:
        await put(channel, "kept", [b"1"])
    assert first.stop() == 0
    assert not server.is_running()
    second = make_service(HEADWAY_DATA_DIR=folder)
    async with connect(second.address) as channel:
        assert await take(channel, "kept") == [b"1"]


async def test_the_store_dies_with_a_killed_service(make_service: MakeService) -> None:
    service = make_service()
    server = store_process(service)
    service.kill()
    await eventually(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE, within=5)


async def test_a_second_service_on_the_same_folder_is_refused_and_harms_nothing(
    make_service: MakeService, connect: Connect, short_dir: Path
) -> None:
    folder = str(short_dir / "shared")
    first = make_service(HEADWAY_DATA_DIR=folder)
    second = make_service(HEADWAY_DATA_DIR=folder, start=False)
    second.launch()
    assert second.wait() == 1
    said = second.log.read_text()
    assert f"process {first.pid}" in said
    assert "Traceback" not in said
    async with connect(first.address) as channel:
        await put(channel, "still", [b"1"])
        assert await take(channel, "still") == [b"1"]


async def test_a_store_that_dies_comes_back_with_its_data(make_service: MakeService, connect: Connect) -> None:
    # With everysec one that waits for a slow disk may not have given to the system yet what it has answered.
    service = make_service(HEADWAY_DURABILITY="always")
    async with connect(service.address) as channel:
        await put(channel, "hardy", [b"1", b"2"])
        stub = queue_service_pb2_grpc.QueueServiceStub(channel)
        for _ in range(2):
            store_process(service).kill()

            async def length() -> int | None:
                try:
                    described = await stub.Describe(queue_service_pb2.DescribeRequest(queue="hardy"), timeout=2)
                except grpc.aio.AioRpcError as error:
                    assert error.code() is grpc.StatusCode.UNAVAILABLE, error
                    return None
                return described.queue.counts.length

            assert await eventually(length, within=10) == 2
        assert await take(channel, "hardy") == [b"1", b"2"]


async def test_calls_answer_unavailable_while_the_store_is_silent(make_service: MakeService, connect: Connect) -> None:
    service = make_service()
    server = store_process(service)
    async with connect(service.address) as channel:
        await put(channel, "silent", [b"1"])
        server.suspend()
        stub = queue_service_pb2_grpc.QueueServiceStub(channel)
        try:
            with refused("STORE_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE) as error:
                await stub.Describe(queue_service_pb2.DescribeRequest(queue="silent"), timeout=5)
            assert error.retry_delay
        finally:
            server.resume()


@pytest.fixture(params=["pipe"] if sys.platform == "darwin" else ["signal", "pipe"])
async def make_store(request: pytest.FixtureRequest) -> AsyncIterator[Callable[[Path], EmbeddedStore]]:
    """Makes embedded stores without a service around them, with each way of dying with the parent."""
    made: list[EmbeddedStore] = []

    def make(folder: Path) -> EmbeddedStore:
        made.append(EmbeddedStore(folder, tether=request.param))
        return made[-1]

    yield make
    for store in made:
        await store.close()


def client(store: EmbeddedStore) -> redis.asyncio.Redis:
    return redis.asyncio.Redis.from_url(store.url, protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=2)


async def test_the_store_is_private_durable_and_has_no_port(
    make_store: Callable[[Path], EmbeddedStore], short_dir: Path
) -> None:
    store = make_store(short_dir / "data")
    await store.start()
    async with client(store) as raw:
        asked = ("port", "appendonly", "appendfsync", "auto-aof-rewrite-min-size", "maxmemory-policy", "save")
        settings = await raw.config_get(*asked)
    assert settings == {
        "port": "0",
        "appendonly": "yes",
        "appendfsync": "everysec",
        "auto-aof-rewrite-min-size": str(256 * 1024 * 1024),
        "maxmemory-policy": "noeviction",
        "save": "",
    }
    assert (short_dir / "data").stat().st_mode & 0o777 == 0o700
    assert (short_dir / "data" / "valkey").stat().st_mode & 0o777 == 0o700


async def test_a_folder_with_blanks_quotes_and_a_long_path_works(
    make_store: Callable[[Path], EmbeddedStore], short_dir: Path
) -> None:
    store = make_store(short_dir / 'a "b" %20?#é' / ("long" * 30))
    await store.start()
    async with client(store) as raw:
        await raw.set("a", "1")
    await store.close()
    again = make_store(store.folder)
    await again.start()
    async with client(again) as raw:
        assert await raw.get("a") == b"1"
    await again.close()
    assert not socket_path(store.folder / "valkey").parent.exists()


def test_a_socket_path_never_exceeds_what_sockets_take(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    for length in range(60, 140):
        private = Path("/" + "x" * (length - 1))
        path = socket_path(private)
        assert len(os.fsencode(path)) <= 103
        assert (path.parent == private) == (length + len("/valkey.sock") <= 103)
    assert socket_path(Path("/" + "a" * 200)) != socket_path(Path("/" + "b" * 200))


async def test_a_socket_folder_of_somebody_else_is_refused(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_dir))
    folder = short_dir / ("long" * 30)
    (short_dir / "elsewhere").mkdir()
    socket_path(folder / "valkey").parent.symlink_to(short_dir / "elsewhere")
    with pytest.raises(EmbeddedStoreFailed, match="somebody else"):
        await EmbeddedStore(folder).start()


async def test_a_folder_in_use_is_refused_and_the_first_user_goes_on(
    make_store: Callable[[Path], EmbeddedStore], short_dir: Path
) -> None:
    first = make_store(short_dir / "data")
    await first.start()
    with pytest.raises(EmbeddedStoreFailed, match=f"process {os.getpid()}"):
        await make_store(short_dir / "data").start()
    async with client(first) as raw:
        assert await raw.ping()


async def test_a_server_whose_tether_was_killed_is_never_joined_by_a_second_one(
    make_store: Callable[[Path], EmbeddedStore], short_dir: Path
) -> None:
    store = make_store(short_dir / "data")
    await store.start()
    async with client(store) as raw:
        await raw.set("a", "1")
        before = (await raw.info("server"))["run_id"]
    os.kill(store.pid, signal.SIGKILL)

    async def answer() -> object:
        async with client(store) as raw:
            try:
                return (await raw.get("a"), (await raw.info("server"))["run_id"])
            except redis.ConnectionError:
                return None

    async def is_another() -> bool:
        said = await answer()
        return isinstance(said, tuple) and said[0] == b"1" and said[1] != before

    await eventually(is_another, within=10)
    running = [
        each for each in psutil.process_iter(["cmdline"]) if str(short_dir) in " ".join(each.info["cmdline"] or [])
    ]
    servers = [each for each in running if "valkey-server" in each.name()]
    assert len(servers) == 1, servers


async def test_a_start_that_fails_says_why_and_gives_the_folder_back(
    make_store: Callable[[Path], EmbeddedStore], short_dir: Path
) -> None:
    store = make_store(short_dir / "data")
    manifest = short_dir / "data" / "valkey" / "appendonlydir" / "appendonly.aof.manifest"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("nonsense\n")
    with pytest.raises(EmbeddedStoreFailed, match="AOF"):
        await store.start()
    manifest.unlink()
    await make_store(short_dir / "data").start()


@pytest.mark.parametrize(
    ("part", "error"),
    [
        ("_prepare", OSError(errno.ENOSPC, "no space")),
        ("_spawn", OSError(errno.EAGAIN, "no more processes")),
        ("_spawn", RuntimeError("can't start new thread")),
    ],
    ids=["space", "process", "thread"],
)
async def test_a_restart_that_fails_does_not_stand_in_the_way_of_the_next(
    make_store: Callable[[Path], EmbeddedStore],
    short_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    part: str,
    error: Exception,
) -> None:
    store = make_store(short_dir / "data")
    await store.start()
    before = store.pid
    failed = asyncio.Event()

    def fail_once() -> None:
        monkeypatch.undo()
        failed.set()
        raise error

    monkeypatch.setattr(store, part, fail_once)
    os.kill(before, signal.SIGKILL)
    async with asyncio.timeout(10):
        await failed.wait()

    async def answers() -> bool:
        async with client(store) as raw:
            try:
                return bool(await raw.ping())
            except redis.RedisError:
                return False

    assert await eventually(answers, within=8)  # before an orphan would be given up
    assert store.pid not in (0, before)


async def test_a_lock_that_cannot_be_written_into_is_not_held(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = Lock(short_dir / "lock")

    def fail_once(*_: object) -> int:
        monkeypatch.undo()
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "pwrite", fail_once)
    with pytest.raises(OSError, match="no space"):
        lock.take()
    assert not lock.is_held
    assert lock.take()
    lock.release()


class DeafToTheFirst(EmbeddedStore):
    """Its watch over the server loses the first cancellation, as one that meets a timeout of the client's may be."""

    async def _supervise(self) -> None:
        try:
            await super()._supervise()
        except asyncio.CancelledError:
            await super()._supervise()


async def test_closing_does_not_hang_when_a_cancellation_is_lost(short_dir: Path) -> None:
    store = DeafToTheFirst(short_dir / "data")
    await store.start()
    await asyncio.sleep(0)  # the watch begins
    async with asyncio.timeout(10):
        await store.close()
    again = EmbeddedStore(short_dir / "data")
    await again.start()
    await again.close()
