"""One driver process: asks it by JSON lines, and hands out its answers and its events."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from conformance.languages import ROOT
from conformance.matching import Mismatch
from harness import processes
from headway.v1.error_reason_pb2 import ErrorReason

ANSWER_S = 20.0
_STOP_S = 10.0
_LINE_BYTES = 256 * 1024 * 1024
_REASONS = {name.removeprefix("ERROR_REASON_") for name in ErrorReason.keys()} - {"UNSPECIFIED"}  # noqa: SIM118
_ERROR_KEYS = {
    "code": str,
    "reason": str | None,
    "metadata": dict,
    "retry_after_ms": int | float | None,
    "violations": list,
    "outcome_unknown": bool,
    "text": str,
}


class DriverFailed(Exception):
    """The driver died, or said what no driver says."""


class RefusedByService(Exception):
    """The driver answered with an error: `said` is what it told of it."""

    def __init__(self, said: dict[str, Any]) -> None:
        super().__init__(json.dumps(said, ensure_ascii=False))
        self.said = said


class Asked(Protocol):
    """A request under way."""

    @property
    def number(self) -> int: ...
    async def answer(self) -> dict[str, Any]: ...
    def is_answered(self) -> bool: ...


class Driver(Protocol):
    """What a scenario speaks to."""

    def ask(self, op: str, **fields: Any) -> Asked: ...
    async def event(self, kind: str, handle: str) -> dict[str, Any]: ...


class Request:
    """A request to a driver process."""

    def __init__(self, number: int, op: str) -> None:
        self.number = number
        self._op = op
        self._future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    def is_answered(self) -> bool:
        return self._future.done()

    def settle(self, told: dict[str, Any] | DriverFailed) -> None:
        if self._future.done():
            return
        if isinstance(told, DriverFailed):
            self._future.set_exception(told)
            self._future.exception()  # whoever awaits it is told; nobody need to
        else:
            self._future.set_result(told)

    async def answer(self) -> dict[str, Any]:
        """What it answered. Raises RefusedByService, Mismatch for nonsense, DriverFailed."""
        try:
            async with asyncio.timeout(ANSWER_S):
                told = await asyncio.shield(self._future)
        except TimeoutError:
            raise Mismatch(f"{self._op}: no answer of the driver within {ANSWER_S} s") from None
        if told.keys() == {"id", "ok"} and isinstance(told["ok"], dict):
            ok: dict[str, Any] = told["ok"]
            return ok
        if told.keys() == {"id", "error"}:
            _check_error(told["error"])
            raise RefusedByService(told["error"])
        raise Mismatch(f"{self._op}: a driver answers `ok` or `error`, not {json.dumps(told)[:300]}")


class DriverProcess:
    """Starts with `start`; its stderr goes to `log`. It ends with its stdin, so also with this process."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command = command
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._asked: dict[int, Request] = {}
        self._numbers = itertools.count(1)
        self._events: deque[dict[str, Any]] = deque()
        self._has_news = asyncio.Condition()

    async def start(self) -> None:
        """Starts the process; it answers when it is ready."""
        with self._log.open("ab") as sink:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=sink,
                cwd=ROOT,
                env={name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")},
                limit=_LINE_BYTES,
                start_new_session=True,
            )
        self._reading = asyncio.create_task(self._read())

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None and not self._is_broken

    @property
    def _is_broken(self) -> bool:
        return self._reading is None or self._reading.done()

    def ask(self, op: str, **fields: Any) -> Request:
        """Sends a request."""
        assert self._process is not None
        assert self._process.stdin is not None
        request = Request(next(self._numbers), op)
        self._asked[request.number] = request
        if self._is_broken:
            request.settle(self._failure("has ended"))
        else:
            line = json.dumps({"id": request.number, "op": op} | fields, ensure_ascii=False)
            self._process.stdin.write(line.encode() + b"\n")
        return request

    async def event(self, kind: str, handle: str) -> dict[str, Any]:
        """The first event of this kind about this handle that was not handed out yet. Raises Mismatch if none comes."""

        def found() -> dict[str, Any] | None:
            return next((each for each in self._events if (each["event"], each["handle"]) == (kind, handle)), None)

        try:
            async with asyncio.timeout(ANSWER_S), self._has_news:
                await self._has_news.wait_for(found)
        except TimeoutError:
            raise Mismatch(f"no event {kind!r} of {handle!r} within {ANSWER_S} s") from None
        event = found()
        assert event is not None
        self._events.remove(event)
        return event

    async def stop(self) -> int | None:
        """Ends stdin, and the exit code; kills it after a while."""
        process = self._process
        if process is None or process.stdin is None:
            return None
        process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_S):
                code = await process.wait()
        except TimeoutError:
            process.kill()
            code = await process.wait()
        if self._reading is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading
        return code

    def _failure(self, what: str) -> DriverFailed:
        return DriverFailed(f"the driver {what}\n{processes.tail(self._log)}")

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        failure = self._failure("has ended")
        while line := await self._process.stdout.readline():
            try:
                told = json.loads(line)
                if "event" in told:
                    async with self._has_news:
                        self._events.append({"handle": None} | told)
                        self._has_news.notify_all()
                else:
                    self._asked.pop(told["id"]).settle(told)
            except (ValueError, KeyError, TypeError):
                failure = self._failure(f"said {line[:300]!r}, which is no answer")
                break
        else:
            failure = self._failure("has ended")
        for request in self._asked.values():
            request.settle(failure)


def _check_error(said: Any) -> None:
    """Raises Mismatch if an error does not look like one."""
    if not isinstance(said, dict) or said.keys() != _ERROR_KEYS.keys():
        raise Mismatch(f"an error has the keys {', '.join(_ERROR_KEYS)}, not {said!r}")
    for key, kind in _ERROR_KEYS.items():
        if not isinstance(said[key], kind):
            raise Mismatch(f"error.{key} is {said[key]!r}")
    if said["reason"] is not None and said["reason"] not in _REASONS:
        raise Mismatch(f"error.reason is {said['reason']!r}, which the schema does not know")
    if said["code"] == "DRIVER":
        raise DriverFailed(f"the driver made a mistake: {said['text']}")
