"""Tasks that begin at once are tasks like others in everything else."""

from __future__ import annotations

import asyncio

import pytest

from headwayd.engine.eager import eager_task


async def test_it_has_come_to_its_first_wait_when_it_is_made() -> None:
    seen: list[str] = []
    may_go_on = asyncio.get_running_loop().create_future()

    async def work() -> str:
        seen.append("begun")
        seen.append(await may_go_on)
        await asyncio.sleep(0)
        return "done"

    task = eager_task(work(), name="eager")
    assert seen == ["begun"]
    await asyncio.sleep(0)
    may_go_on.set_result("gone on")
    assert await task == "done"
    assert seen == ["begun", "gone on"]
    assert task.get_name() == "eager"


async def test_what_it_waits_for_may_be_there_before_its_task_first_runs() -> None:
    future = asyncio.get_running_loop().create_future()

    async def work() -> int:
        return int(await future) + 1

    task = eager_task(work(), name="eager")
    future.set_result(1)
    assert await task == 2


@pytest.mark.parametrize("waits", [False, True])
async def test_its_end_is_the_tasks(waits: bool) -> None:
    async def work(error: Exception | None) -> str:
        if waits:
            await asyncio.sleep(0)
        if error is not None:
            raise error
        return "done"

    assert await eager_task(work(None), name="eager") == "done"
    with pytest.raises(ValueError, match="a defect"):
        await eager_task(work(ValueError("a defect")), name="eager")


@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_it_hears_of_its_cancellation_however_soon_that_comes(turns: int) -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        finally:
            await asyncio.sleep(0)
            seen.append("tidied")

    task = eager_task(work(), name="eager")
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled", "tidied"]


async def test_it_is_the_current_task_of_what_it_does_and_no_other() -> None:
    seen: list[asyncio.Task[None] | None] = []

    async def work() -> None:
        seen.append(asyncio.current_task())
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    this = asyncio.current_task()
    task = eager_task(work(), name="eager")
    assert asyncio.current_task() is this
    with pytest.raises(TimeoutError):
        await task
    assert seen == [task]


async def test_one_may_begin_another_and_the_loop_itself_one() -> None:
    async def inner() -> str:
        await asyncio.sleep(0)
        return "inner"

    async def outer() -> str:
        return await eager_task(inner(), name="inner") + " of outer"

    made: asyncio.Future[asyncio.Task[str]] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(lambda: made.set_result(eager_task(outer(), name="outer")))
    assert await (await made) == "inner of outer"
