"""Those who wait are woken in order, some in each turn of the event loop."""

from __future__ import annotations

import asyncio

from headwayd.engine.watching.waking import Waking

AT_A_TURN = 20


def waiting(count: int) -> list[asyncio.Future[None]]:
    return [asyncio.get_running_loop().create_future() for _ in range(count)]


async def test_few_are_woken_at_once_however_often() -> None:
    waking = Waking()
    for _ in range(10):
        few = waiting(AT_A_TURN)
        for one in few:
            waking.wake(one)
        assert all(one.done() for one in few)
        await asyncio.sleep(0)


async def test_many_are_woken_in_order_some_in_each_turn() -> None:
    waking = Waking()
    many = waiting(500)
    for one in many:
        waking.wake(one)
    woken = AT_A_TURN
    while woken < 500:
        assert [one.done() for one in many] == [True] * woken + [False] * (500 - woken)
        await asyncio.sleep(0)
        woken += AT_A_TURN
    assert all(one.done() for one in many)


async def test_who_waits_no_more_takes_nobodys_turn() -> None:
    waking = Waking()
    many, last = waiting(500), waiting(1)[0]
    for one in (*many, last):
        waking.wake(one)
    for one in many[1::2]:
        one.cancel()
    for _ in range(250 // AT_A_TURN + 1):
        await asyncio.sleep(0)
    assert last.done()


async def test_who_comes_behind_many_is_woken_behind_them() -> None:
    waking = Waking()
    many, late = waiting(2 * AT_A_TURN), waiting(1)[0]
    for one in many:
        waking.wake(one)
    await asyncio.sleep(0)
    waking.wake(late)
    assert all(one.done() for one in many)
    assert not late.done()
    await asyncio.sleep(0)
    assert late.done()
