"""Several servers are asked at once, and those that answer are enough."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from headwayd.domain.errors import StoreUnavailable
from headwayd.store.link import Link
from headwayd.store.several import ask_each


class Server:
    """Answers, fails, or is silent; `answer` None: silent."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    async def ask(self) -> object:
        if self.answer is None:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def ask(*servers: object) -> list[object]:
    links = cast(list[Link], [Server(answer) for answer in servers])
    return await ask_each(links, lambda link: cast(Any, link).ask(), within_s=0.05)


REFUSED = StoreUnavailable("refused", metadata={"cause": "REFUSED"})


async def test_those_that_answer_are_enough() -> None:
    assert await ask("one", None, REFUSED, "four") == ["one", "four"]


async def test_the_first_error_is_told_if_none_answers() -> None:
    with pytest.raises(StoreUnavailable) as caught:
        await ask(None, REFUSED)
    assert caught.value is REFUSED


@pytest.mark.parametrize(("servers", "cause"), [((), "REFUSED"), ((None, None), "SILENT")])
async def test_none_known_and_none_heard_are_unavailable(servers: tuple[object, ...], cause: str) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        await ask(*servers)
    assert caught.value.metadata == {"cause": cause}
