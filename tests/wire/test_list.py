"""List: every queue by name, page by page, those of foreign clients too."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable

import grpc
import pytest

from harness import ServiceProcess, StoreServer, refused
from headway.v1 import queue_pb2, queue_service_pb2
from wire.calls import INVALID_ARGUMENT, Keys, Line, line_at

Tree = list[str]


@pytest.fixture
async def tree(line: Line) -> AsyncIterator[Tree]:
    """Seven queues whose names begin alike; in byte order."""
    names = [line.name + tail for tail in ("", "-", "-a", "-b", "-c", "-é", "-\U0001f422")]
    for name in names:
        await Line(line.stub, name).create()
    yield sorted(names, key=str.encode)
    for name in names[1:]:
        await Line(line.stub, name).delete()


async def page(line: Line, prefix: str, **fields: object) -> queue_service_pb2.ListResponse:
    request = queue_service_pb2.ListRequest(prefix=prefix, **fields)  # type: ignore[arg-type]
    return await line.stub.List(request, timeout=15)


async def listed(line: Line, prefix: str, page_size: int = 0) -> list[queue_pb2.Queue]:
    """All pages."""
    queues: list[queue_pb2.Queue] = []
    token = ""
    while True:
        answer = await page(line, prefix, page_size=page_size, page_token=token)
        queues += answer.queues
        assert page_size == 0 or len(answer.queues) <= page_size
        token = answer.next_page_token
        if not token:
            return queues


async def test_names_come_in_byte_order(line: Line, tree: Tree) -> None:
    assert [queue.name for queue in await listed(line, line.name)] == tree


@pytest.mark.parametrize("page_size", [1, 2, 3, 6, 7, 8, 1_000])
async def test_each_queue_is_on_exactly_one_page(line: Line, tree: Tree, page_size: int) -> None:
    assert [queue.name for queue in await listed(line, line.name, page_size)] == tree


async def test_a_listed_queue_is_told_as_describe_tells_it(line: Line) -> None:
    await line.create(bound=5)
    await line.put(b"one", b"two")
    await line.take_one(lease_ms=600_000)
    [queue] = await listed(line, line.name)
    described = await line.describe()
    for one in (queue, described):  # these move with time
        one.counts.ClearField("oldest_age")
        one.counts.ClearField("put_rate")
        one.counts.ClearField("consumers_waiting")
    assert queue == described


async def test_a_prefix_is_the_beginning_of_a_name_and_no_pattern(line: Line, tree: Tree) -> None:
    assert [queue.name for queue in await listed(line, line.name + "-")] == tree[1:]
    assert await listed(line, line.name + "*") == []
    assert await listed(line, line.name.replace("-", "?")) == []
    assert await listed(line, "[" + line.name) == []
    assert await listed(line, str(uuid.uuid4())) == []


async def test_queues_made_during_the_listing_neither_hide_nor_repeat_others(line: Line, tree: Tree) -> None:
    first = await page(line, line.name, page_size=3)
    early, late = Line(line.stub, line.name + "-0"), Line(line.stub, line.name + "-z")
    await early.create()
    await late.create()
    second = await page(line, line.name, page_size=100, page_token=first.next_page_token)
    names = [queue.name for queue in (*first.queues, *second.queues)]
    assert [name for name in names if name in tree] == tree
    assert len(set(names)) == len(names)
    await early.delete()
    await late.delete()


async def test_queues_deleted_during_the_listing_do_not_hide_others(line: Line, tree: Tree) -> None:
    first = await page(line, line.name, page_size=3)
    await Line(line.stub, tree[2]).delete()  # the last of the page
    await Line(line.stub, tree[3]).delete()  # the first of the next
    second = await page(line, line.name, page_size=100, page_token=first.next_page_token)
    assert [queue.name for queue in second.queues] == tree[4:]
    for name in tree[2:4]:
        await Line(line.stub, name).create()


async def test_deleted_queues_are_not_listed(line: Line) -> None:
    await line.create()
    await line.delete()
    assert await listed(line, line.name) == []


@pytest.mark.parametrize("page_size", [1_001, 4_294_967_295])
async def test_a_page_larger_than_1000_is_refused(line: Line, page_size: int) -> None:
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await page(line, line.name, page_size=page_size)
    assert list(said.violations) == ["page_size"]
    assert said.metadata == {"field": "page_size"}


@pytest.mark.parametrize("field", ["prefix", "page_token"])
@pytest.mark.parametrize("text", ["\x00", "a\x1f", "a\x1fb", "\x7f", "\x9f"])
async def test_control_characters_are_refused(line: Line, field: str, text: str) -> None:
    with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
        await page(line, **{"prefix": line.name, field: text})
    assert list(said.violations) == [field]


@pytest.mark.parametrize("token", ["x", "\U0001f422", "a" * 10_000])
async def test_a_made_up_page_token_is_refused_or_begins_somewhere(line: Line, tree: Tree, token: str) -> None:
    try:
        names = [queue.name for queue in (await page(line, line.name, page_token=token)).queues]
    except grpc.aio.AioRpcError:
        with refused("FIELD_INVALID", INVALID_ARGUMENT) as said:
            await page(line, line.name, page_token=token)
        assert list(said.violations) == ["page_token"]
    else:
        assert names == tree[len(tree) - len(names) :]


async def test_a_foreign_queue_without_a_utf8_name_disturbs_nobody(line: Line, keys: Keys) -> None:
    await line.create()
    foreign = keys[""].encode() + b"\xff\xfe:bound"
    keys.client.set(foreign, 0)
    try:
        assert [queue.name for queue in await listed(line, line.name)] == [line.name]
    finally:
        keys.client.delete(foreign)


async def test_a_foreign_bound_that_is_no_number_disturbs_nobody(line: Line, keys: Keys) -> None:
    await line.create()
    foreign = keys[""] + "-odd:bound"
    keys.client.set(foreign, "many")
    try:
        assert line.name in [queue.name for queue in await listed(line, line.name)]
    finally:
        keys.client.delete(foreign)


@pytest.mark.parametrize("prefix", ["a*b", "[a]", "a?", "a\\b", "a:b", "^"])
async def test_a_prefix_of_all_keys_that_looks_like_a_pattern_lists_only_its_own_queues(
    store_server: StoreServer,
    make_service: Callable[..., ServiceProcess],
    connect: Callable[[str], grpc.aio.Channel],
    prefix: str,
) -> None:
    mark = uuid.uuid4().hex[:8]
    service = make_service(HEADWAY_REDIS_URL=store_server.url, PRESSURE_PREFIX=mark + prefix)
    other = make_service(HEADWAY_REDIS_URL=store_server.url, PRESSURE_PREFIX=mark + prefix.replace("*", "xx") + "c")
    async with line_at(service.address, "mine", connect) as mine, line_at(other.address, "theirs", connect) as theirs:
        await mine.create()
        await theirs.create()
        # A queue whose own key ends like a bound key is not taken for one.
        tricky = Line(mine.stub, ":bound")
        await tricky.create()
        await tricky.put(b"one")
        assert [queue.name for queue in await listed(mine, "")] == [":bound", "mine"]
        assert [queue.name for queue in await listed(theirs, "")] == ["theirs"]
        for one in (mine, tricky, theirs):
            await one.delete()
        assert await listed(mine, "") == []
