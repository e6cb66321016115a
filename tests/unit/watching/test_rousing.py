"""Those who wait are woken in order, some in each turn of the event loop."""

from __future__ import annotations

import asyncio

from headwayd.engine.watching.rousing import Rousing

AT_A_TURN = 20


def waiting(count: int) -> list[asyncio.Future[None]]:
    return [asyncio.get_running_loop().create_future() for _ in range(count)]


async def test_few_are_woken_at_once_however_often() -> None:
    rousing = Rousing()
    for _ in range(10):
        few = waiting(AT_A_TURN)
        for one in few:
            rousing.rouse(one)
        assert all(one.done() for one in few)
        await asyncio.sleep(0)


async def test_many_are_woken_in_order_some_in_each_turn() -> None:
    rousing = Rousing()
    many = waiting(500)
    for one in many:
        rousing.rouse(one)
    woken = AT_A_TURN
    while woken < 500:
        assert [one.done() for one in many] == [True] * woken + [False] * (500 - woken)
        await asyncio.sleep(0)
        woken += AT_A_TURN
    assert all(one.done() for one in many)


async def test_who_waits_no_more_takes_nobodys_turn() -> None:
    rousing = Rousing()
    many, last = waiting(500), waiting(1)[0]
    for one in (*many, last):
        rousing.rouse(one)
    for one in many[1::2]:
        one.cancel()
    for _ in range(250 // AT_A_TURN + 1):
        await asyncio.sleep(0)
    assert last.done()


async def test_who_comes_behind_many_is_woken_behind_them() -> None:
    rousing = Rousing()
    many, late = waiting(2 * AT_A_TURN), waiting(1)[0]
    for one in many:
        rousing.rouse(one)
    await asyncio.sleep(0)
    rousing.rouse(late)
    assert all(one.done() for one in many)
    assert not late.done()
    await asyncio.sleep(0)
    assert late.done()
