"""One message through three clients: put in one language, worked on in another, watched in a third; one trace."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from conformance import schema
from conformance.driving import DriverProcess
from conformance.languages import BUILD_S, LANGUAGES, missing
from conformance.matching import Mismatch, compare, encoded
from conformance.playing import told_of_lease
from conformance.stage import Stage

pytestmark = pytest.mark.timeout(3 * BUILD_S)

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"
MESSAGE: dict[str, Any] = {
    "id": "größe-🦆",
    "payload": encoded(b"\x00\xff \xf0\x9f\xa6\x86"),
    "headers": {"ключ": "значение"},
}
RESULT = encoded("fertig ✓".encode())
_NEXT_MS = 5000


class Client:
    """One driver's connection, and short words for what it is asked here."""

    def __init__(self, driver: DriverProcess, queue: str, address: str) -> None:
        self.name = f"mixed-{uuid.uuid4().hex[:8]}"
        self.driver = driver
        self.queue = queue
        self.address = address

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        return await self.driver.ask(op, client=self.name, **fields).answer()

    async def __aenter__(self) -> Client:
        await self.ask("connect", addresses=[self.address], options={})
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.ask("disconnect")

    async def sees(self, **wanted: Any) -> None:
        """Reads its watch on until an event is what is wanted."""
        while True:
            event = (await self.ask("watch_next", handle=self.name, timeout_ms=_NEXT_MS)).get("event")
            if event is None:
                raise Mismatch(f"the watch did not tell {wanted}")
            told = schema.read(schema.EVENTS[event["kind"]], event, also=("kind",))
            try:
                compare(told, {"id": MESSAGE["id"], **wanted})
            except Mismatch:
                continue
            return


def third(producer: str, worker: str, languages: list[str]) -> str:
    """A language that is neither, if there is one here; over all pairs they take turns."""
    here = [name for name in languages if not missing(LANGUAGES[name])]
    others = [name for name in here if name not in (producer, worker)] or here
    return others[(languages.index(producer) + languages.index(worker)) % len(others)]


@pytest.mark.parametrize(("producer", "worker_language"), list(itertools.product(LANGUAGES, repeat=2)))
async def test_message_goes_through_three_languages_as_one_trace(
    producer: str,
    worker_language: str,
    stage: Stage,
    driver_of: Callable[[str], Awaitable[DriverProcess]],
    pytestconfig: pytest.Config,
) -> None:
    chosen = pytestconfig.getoption("--languages").split(",")
    languages = [producer, worker_language, third(producer, worker_language, chosen)]
    queue = f"mixed-{uuid.uuid4().hex[:8]}"
    drivers = [await driver_of(name) for name in languages]
    puts, works, watches = (Client(driver, queue, stage.service.address) for driver in drivers)
    async with puts, works, watches:
        await puts.ask("call", rpc="Create", request={"queue": queue})
        put = await puts.ask("put", queue=queue, messages=[MESSAGE], traceparent=TRACEPARENT)
        compare(
            [schema.read(schema.PUT_RESULT, each) for each in put["results"]], [{"id": MESSAGE["id"], "position": 1}]
        )

        await watches.ask("watch", handle=watches.name, queue=queue, ids=[MESSAGE["id"]])
        await watches.sees(kind="position", position=1)

        await works.ask("work", handle=works.name, queue=queue, concurrency=1)
        event = await works.driver.event("handling", works.name)
        told = {key: value for key, value in event.items() if key not in ("event", "handle")}
        headers = {**MESSAGE["headers"], "traceparent": TRACEPARENT}
        compare(told_of_lease(told, also=("lease",)), {"message": {**MESSAGE, "headers": headers}, "attempt": 1})
        assert told["traceparent"].split("-")[1] == TRACE_ID
        await watches.sees(kind="leased", attempt=1)

        await works.ask("finish", handle=works.name, lease=event["lease"], how="return", result=RESULT)
        await watches.sees(kind="finished", outcome="OUTCOME_DONE", result=RESULT)
        await works.ask("work_stop", handle=works.name)
        compare(await works.driver.event("ended", works.name), {"error": None})
