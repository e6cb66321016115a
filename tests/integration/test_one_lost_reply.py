"""One reply of the store is lost on its way, and the next connection is fine: still nothing is done twice."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from harness import FaultProxy, StoreServer
from headwayd.domain.errors import OutcomeUnknown
from headwayd.domain.model import NewMessage, OnDuplicate, Policy
from headwayd.store.redis_store import RedisStore

PREFIX, QUEUE = "one-lost-reply", "jobs"


class LosesOne(FaultProxy):
    """Swallows the next answer of the store, when told to, and cuts that connection."""

    loses_next = False

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(65_536):
            if self.loses_next:
                self.loses_next = False
                return
            writer.write(chunk)
            await writer.drain()


async def test_a_put_whose_reply_was_lost_is_not_sent_again_behind_the_callers_back(store_server: StoreServer) -> None:
    async with LosesOne(store_server.port) as wire:
        store = RedisStore(
            wire.url, prefix=PREFIX, process="headway/test/1/0", embedded=False, call_timeout=timedelta(seconds=5)
        )

        async def put() -> None:
            await store.put(
                QUEUE,
                [NewMessage(payload=b"without an id")],
                producer="p",
                waiter="",
                line_ticket=0,
                on_duplicate=OnDuplicate.REJECT,
                all_or_nothing=False,
                budget_s=5.0,
            )

        await store.create(QUEUE, Policy(), budget_s=5.0)
        await put()
        wire.loses_next = True
        with pytest.raises(OutcomeUnknown):
            await put()
        assert (await store.describe(QUEUE, budget_s=5.0)).counts.accepted == 2
        await store.delete(QUEUE, budget_s=5.0)
        await store.close()
