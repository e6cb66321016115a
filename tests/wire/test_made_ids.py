"""Ids that the service makes: taken byte for byte as they were told."""

from __future__ import annotations

import pytest

from wire.calls import GONE, Line, Message
from wire.operators import ONE_ATTEMPT, all_dead, assert_sound, bury, redrive
from wire.test_withdraw import withdrawn
from wire.watches import NOT_KNOWN, watching

LATER_MS = 3_600_000


def later(message_id: str = "") -> Message:
    """A message that is put delayed."""
    one = Message(id=message_id, payload=b"later")
    one.delay.FromMilliseconds(LATER_MS)
    return one


async def made_for(line: Line, put: bytes | Message) -> str:
    """Puts it; the id that was made for it."""
    [result] = (await line.put(put)).results
    assert result.id.startswith("~")
    return str(result.id)


def respelled(made: str) -> list[str]:
    """The same number in other spellings."""
    front, _, number = made.rpartition("-")
    mark = "d" if number.startswith("d") else ""
    digits = number.removeprefix("d")
    return [f"{front}-{mark}{other}" for other in ("0" + digits, "000" + digits, digits + ".0", "+" + digits)]


async def names_nothing(line: Line, *names: str) -> None:
    """No call takes any of these names for a message of the queue."""
    assert set(await withdrawn(line, *names)) == {"MESSAGE_NOT_FOUND"}
    assert {one.settled for one in await line.delay(message_ids=names, delay_ms=LATER_MS)} == {GONE}
    assert list((await redrive(line, *names))[-1].not_found_ids) == list(names)
    async with watching(line, *names) as watched:
        told = await watched.end()
    assert {one.finished.outcome for one in told} == {NOT_KNOWN}
    assert {one.finished.id for one in told} == set(names)


@pytest.mark.parametrize("put", [b"x", later()], ids=["waiting", "delayed"])
async def test_a_made_id_in_another_spelling_names_nothing(line: Line, put: bytes | Message) -> None:
    await line.create()
    made = await made_for(line, put)
    await names_nothing(line, *respelled(made), made + " ")
    assert await withdrawn(line, made) == [""]
    await assert_sound(line)


async def test_the_made_id_of_a_dead_message_in_another_spelling_names_nothing(line: Line) -> None:
    await line.create(retry=ONE_ATTEMPT)
    await bury(line, b"x")
    [dead] = await all_dead(line)
    await names_nothing(line, *respelled(dead.message.id))
    assert (await redrive(line, dead.message.id))[-1].redriven == 1
