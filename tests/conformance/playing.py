"""Plays a scenario: makes its steps with a driver, orders its faults, and compares what comes with what it expects."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from typing import Any, Protocol

from conformance import schema
from conformance.driving import Asked, Driver, RefusedByService
from conformance.matching import Mismatch, compare, filled, part_of
from conformance.scenarios import BESIDE, OPERATIONS, Scenario, verb_of

SCENARIO_S = 60.0
_NEXT_MS = 5000
_PAUSE_S = 0.02
_numbers = itertools.count(1)
Json = dict[str, Any]


class Place(Protocol):
    """What a player needs of a scene."""

    @property
    def addresses(self) -> dict[str, str]: ...
    @property
    def direct(self) -> str: ...
    @property
    def options(self) -> dict[str, Any]: ...
    @property
    def files(self) -> dict[str, str]: ...
    async def fault(self, kind: str, about: str, queue: str) -> None: ...


class Player:
    """One scenario, played by one driver.

    Clients and handles get names that no other scenario uses, because a driver lives longer than one.
    """

    def __init__(self, scenario: Scenario, driver: Driver, scene: Place, *, patience_s: float = 5.0) -> None:
        self._scenario = scenario
        self._driver = driver
        self._scene = scene
        self._patience_s = patience_s
        self._number = next(_numbers)
        self._queue = f"{scenario.id}-{uuid.uuid4().hex[:8]}"
        self._variables: Json = {"queue": self._queue, "at.direct": scene.direct}
        self._variables |= {f"at.{name}": address for name, address in scene.addresses.items()}
        self._variables |= {f"file.{name}": path for name, path in scene.files.items()}
        self._clients: list[str] = []
        self._opened: dict[str, str] = {}  # handle → RPC
        self._started: dict[str, tuple[Json, Asked]] = {}

    async def play(self) -> None:
        """Raises Mismatch, with the step, if something is not as expected."""
        async with asyncio.timeout(SCENARIO_S):
            try:
                await self._connect("c", {})
                if self._scenario.queue is not None:
                    await self._step({"call": "Create", "request": {"policy": self._scenario.queue}})
                for number, step in enumerate(self._scenario.steps, start=1):
                    try:
                        await self._step(step)
                    except Mismatch as mismatch:
                        raise Mismatch(f"{self._scenario.id}, step {number} {_brief(step)}: {mismatch}") from None
            finally:
                for name in self._clients:
                    await self._driver.ask("disconnect", client=name).answer()

    async def _step(self, step: Json) -> None:
        step = filled(step, self._variables)
        verb = verb_of(step)
        about = step[verb]
        if verb == "fault":
            ((kind, which),) = about.items()
            await self._scene.fault(kind, which, step.get("queue", self._queue))
        elif verb == "pending":
            if self._started[about][1].is_answered():
                raise Mismatch("it is answered already")
        elif verb == "cancel":
            await self._driver.ask("cancel", target=self._started[about][1].number).answer()
        elif verb == "connect":
            await self._connect(about, step)
        elif verb == "disconnect":
            self._clients.remove(self._named(about))
            await self._driver.ask("disconnect", client=self._named(about)).answer()
        elif verb in ("handling", "cancelled", "ended"):
            await self._heard(verb, step)
        elif verb == "await":
            begun, asked = self._started.pop(about)
            await self._judge({**begun, **step}, asked)
        elif "until" in step or "until_error" in step:
            await self._repeat(step)
        else:
            asked = self._ask(step)
            if "start" in step:
                self._started[step["start"]] = (step, asked)
            else:
                await self._judge(step, asked)

    async def _connect(self, name: str, step: Json) -> None:
        addresses = step.get("to") or list(self._scene.addresses.values())
        self._clients.append(self._named(name))
        told = self._scene.options | step.get("options", {})
        options = {key: value for key, value in told.items() if value is not None}  # null: without it
        await self._driver.ask("connect", client=self._named(name), addresses=addresses, options=options).answer()

    async def _heard(self, kind: str, step: Json) -> None:
        event = await self._driver.event(kind, self._named(step[kind]))
        told: Json = {key: value for key, value in event.items() if key not in ("event", "handle")}
        if kind == "handling":
            told = told_of_lease(told, also=("lease",))
        self._accept(step, told)

    async def _repeat(self, step: Json) -> None:
        """Makes a call again, or reads a stream on, until the answer is what is waited for."""
        deadline = time.monotonic() + self._patience_s
        wanted = {"expect": step["until"]} if "until" in step else {"error": step["until_error"]}
        while True:
            try:
                await self._judge({**step, **wanted}, self._ask(step))
            except Mismatch:
                if time.monotonic() >= deadline:
                    raise
                await asyncio.sleep(_PAUSE_S)
            else:
                return

    def _ask(self, step: Json) -> Asked:
        """Sends an operation."""
        op = verb_of(step)
        fields = {key: value for key, value in step.items() if key != op and key not in BESIDE}
        fields[OPERATIONS[op]] = step[op]
        fields["client"] = self._named(fields.get("client", "c"))
        if op in ("put", "lease", "work", "watch"):
            fields.setdefault("queue", self._queue)
        if op == "work":
            fields.setdefault("concurrency", 1)
        if op == "open":
            fields["handle"] = fields.pop("as")
            self._opened[fields["handle"]] = step["open"]
        if op in ("next", "watch_next"):
            fields["timeout_ms"] = step.get("silent", _NEXT_MS)
        if op == "call" or (op == "open" and not schema.method_of(step[op]).client_streaming):
            fields["request"] = schema.request_of(step[op], fields.get("request", {}), self._queue)
        if op == "send":
            fields["request"] = schema.request_of(self._opened[step[op]], fields["request"])
        if "handle" in fields:
            fields["handle"] = self._named(fields["handle"])
        return self._driver.ask(op, **fields)

    async def _judge(self, step: Json, asked: Asked) -> None:
        """Waits for the answer, which may have to come soon, and compares it with what the step expects."""
        try:
            async with asyncio.timeout(step.get("within")):
                answer = await asked.answer()
        except TimeoutError:
            raise Mismatch(f"no answer within {step['within']} s") from None
        except RefusedByService as refused:
            if "error" not in step:
                raise Mismatch(f"it failed: {refused}") from None
            self._accept({**step, "expect": step["error"]}, refused.said)
            return
        if "error" in step:
            raise Mismatch(f"expected an error like {step['error']}, and it was answered {str(answer)[:600]}")
        if "silent" in step:
            compare(answer, {"timeout": True})
        elif "ends" in step:
            compare(answer, {"end": True})
        else:
            self._accept(step, self._read(step, answer))

    def _read(self, step: Json, answer: Json) -> Any:
        """The part of an answer that a step expects something of, read by the schema."""
        match verb_of(step):
            case "call":
                return schema.answer_of(step["call"], answer.get("response"))
            case "next":
                if "response" not in answer:
                    raise Mismatch(f"no message came, but {answer}")
                return schema.answer_of(self._opened[step["next"]], answer["response"])
            case "put":
                if not isinstance(results := answer.get("results"), list):
                    raise Mismatch(f"no results, but {answer}")
                return [schema.read(schema.PUT_RESULT, each) for each in results]
            case "lease":
                return answer if answer == {"empty": True} else told_of_lease(answer)
            case "watch_next":
                event = answer.get("event")
                if not isinstance(event, dict) or event.get("kind") not in schema.EVENTS:
                    raise Mismatch(f"no event came, but {answer}")
                return schema.read(schema.EVENTS[event["kind"]], event, also=("kind",))
        return answer

    def _accept(self, step: Json, told: Any) -> None:
        if "expect" in step:
            compare(told, step["expect"])
        for name, path in step.get("keep", {}).items():
            self._variables[name] = part_of(told, path)

    def _named(self, name: str) -> str:
        return f"{self._number}.{name}"


def told_of_lease(told: Json, *, also: tuple[str, ...] = ()) -> Json:
    """What a driver tells of a lease that was given. Raises Mismatch if it tells something else."""
    keys = {"message", "attempt", "ticket", "traceparent", *also}
    if not {"message", "attempt", *also} <= told.keys() <= keys:
        raise Mismatch(f"a lease is told with {', '.join(sorted(keys))}, not {told}")
    return told | {"message": schema.read(schema.MESSAGE, told["message"])}


def _brief(step: Json) -> str:
    text = str({key: value for key, value in step.items() if key not in BESIDE})
    return text if len(text) < 200 else f"{text[:200]}…"
