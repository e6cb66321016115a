# ruff: noqa: PLR0917 - typer makes options of these arguments; nobody calls them by position
"""The command that puts messages: from an argument, a file, standard input, lines or JSON lines."""

import asyncio
import base64
import binascii
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from headway._batch import OnDuplicateName, held_up_by, make_message
from headway._client import Client
from headway._queue import Queue
from headway.cli._app import app, perform
from headway.cli._arguments import QueueName, WaitOption, parse_headers, parse_span
from headway.cli._blocked import name_of_this_run, showing_place
from headway.cli._exits import ExitCode, exit_code
from headway.cli._output import Output
from headway.cli._stdin import read_all, read_lines
from headway.core.connecting import backoff_seconds
from headway.core.error import HeadwayError, from_status
from headway.core.errors import (
    NotDurable,
    Overloaded,
    QueueDeleted,
    QueueExists,
    QueueFull,
    QueueNotFound,
    RoleInUse,
    ShuttingDown,
    StoreFull,
    StoreUnavailable,
)
from headway.v1.error_reason_pb2 import ErrorReason
from headway.v1.message_pb2 import Message, PutResult

_PATIENT_WAIT = timedelta(hours=1)  # the longest that one call may wait; asked again for as long as it takes
# Of what is refused for these nothing has happened, and they pass by themselves.
_PASSING = (QueueFull, StoreUnavailable, ShuttingDown, NotDurable, StoreFull, Overloaded, RoleInUse)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Where the messages come from, and what all of them share."""

    payload: str | None
    file: Path | None
    lines: bool
    json_lines: bool
    id: str
    headers: dict[str, str]
    delay: timedelta | None
    time_to_live: timedelta | None

    def check(self) -> None:
        """Raises typer.BadParameter if the options do not go together."""
        given = [self.payload is not None, self.file is not None, self.lines, self.json_lines]
        if sum(given) > 1:
            raise typer.BadParameter("give one of a payload, --file, --lines and --json-lines")
        if not any(given) and sys.stdin.isatty():
            raise typer.BadParameter("nothing to put: give a payload, --file, --lines, or pipe something in")
        if self.id and (self.lines or self.json_lines):
            raise typer.BadParameter("--id names one message; with --json-lines each object brings its own")

    async def batches(self) -> AsyncIterator[list[Message]]:
        """Yields the messages in order, as they come. Raises ValueError for a JSON line that is not a message."""
        stdin = sys.stdin.fileno()
        if self.lines:
            async for lines in read_lines(stdin):
                yield [self._message(line) for line in lines]
        elif self.json_lines:
            number = 0
            async for lines in read_lines(stdin):
                batch = []
                for line in lines:
                    number += 1
                    if line.strip():
                        batch.append(self._from_json(line, number))
                yield batch
        elif self.payload is not None:
            yield [self._message(os.fsencode(self.payload))]
        elif self.file is not None:
            yield [self._message(self.file.read_bytes())]
        else:
            yield [self._message(await read_all(stdin))]

    def _message(self, payload: bytes) -> Message:
        return make_message(payload, id=self.id, headers=self.headers, when=self.delay, time_to_live=self.time_to_live)

    def _from_json(self, line: bytes, number: int) -> Message:
        try:
            return self._from_object(json.loads(line))
        except (ValueError, TypeError, KeyError, RecursionError, binascii.Error, typer.BadParameter) as error:
            raise ValueError(f"line {number} is not a message: {error}") from error

    def _from_object(self, given: Any) -> Message:
        if not isinstance(given, dict):
            raise TypeError("not an object")
        unknown = given.keys() - {"payload", "payload_base64", "id", "headers", "delay", "time_to_live"}
        if unknown:
            raise ValueError(f"no such key: {', '.join(sorted(unknown))}")
        if ("payload" in given) == ("payload_base64" in given):
            raise ValueError("give payload or payload_base64")
        payload = (
            base64.b64decode(given["payload_base64"], validate=True)
            if "payload_base64" in given
            else given["payload"].encode()
            if isinstance(given["payload"], str)
            else None
        )
        if payload is None:
            raise TypeError("payload is a text")
        delay = parse_span(str(given["delay"])) if "delay" in given else self.delay
        time_to_live = parse_span(str(given["time_to_live"])) if "time_to_live" in given else self.time_to_live
        headers = {**self.headers, **given.get("headers", {})}
        return make_message(payload, id=given.get("id", ""), headers=headers, when=delay, time_to_live=time_to_live)


class _Sender:
    """Puts batches into one queue, makes it if need be, and waits for room."""

    def __init__(
        self,
        queue: Queue,
        *,
        wait: timedelta | None,
        is_patient: bool,
        creates: bool,
        on_duplicate: OnDuplicateName,
        producer: str,
    ) -> None:
        self._queue = queue
        self._wait = wait
        self._is_patient = is_patient
        self._creates = creates
        self._on_duplicate = on_duplicate
        self._producer = producer
        self.accepted_count = 0
        self.is_in_doubt = False  # more may have been accepted

    async def send(self, messages: Sequence[Message]) -> list[PutResult]:
        """One result per message, in order. Patient: asks again for as long as there is no room, and for the rest when
        the service took a part; if it then takes nothing that is raised."""
        results: dict[int, PutResult] = {}
        self.is_in_doubt = True
        rest = list(range(len(messages)))
        failures = 0
        while rest:
            try:
                answers = await self._queue.put_many(
                    [messages[i] for i in rest],
                    wait=await self._longest_wait() if self._is_patient else self._wait,
                    on_duplicate=self._on_duplicate,
                    producer=self._producer,
                )
            except QueueFull as error:
                if not self._is_patient:
                    raise
                if not await self._longest_wait():
                    await asyncio.sleep(backoff_seconds(1, error.retry_after))
                continue
            except QueueDeleted:
                raise
            except QueueNotFound:
                if not self._creates:
                    raise
                await self.create()
                continue
            except HeadwayError as error:
                self.accepted_count += sum(not result.HasField("error") for result in error.results)
                self.is_in_doubt = error.is_outcome_unknown
                raise
            self.accepted_count += sum(not answer.HasField("error") for answer in answers)
            results.update(zip(rest, answers, strict=True))
            held_up = held_up_by(answers)
            if not (self._is_patient and isinstance(held_up, _PASSING)):
                break
            rest = [i for i in rest if isinstance(held_up_by([results[i]]), _PASSING)]
            if not isinstance(held_up, QueueFull):  # for room it has waited
                failures += 1
                await asyncio.sleep(backoff_seconds(failures))
        self.is_in_doubt = False
        return [results[i] for i in range(len(messages))]

    async def _longest_wait(self) -> timedelta:
        return await self._queue.client.longest_wait(_PATIENT_WAIT)

    async def create(self) -> None:
        """Makes the queue with the default policy; that somebody else was faster is fine."""
        self._creates = False  # once: a queue that goes away again is not made again
        try:
            await self._queue.create()
        except QueueExists:
            return

    async def close(self) -> None:
        """Closes the queue, also if nothing was put and it has to be made for that."""
        try:
            await self._queue.close()
        except QueueDeleted:
            raise
        except QueueNotFound:
            if not self._creates:
                raise
            await self.create()
            await self._queue.close()


@app.command()
def put(
    context: typer.Context,
    queue: QueueName,
    payload: Annotated[str | None, typer.Argument(help="The payload; else see the options.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", exists=True, dir_okay=False, help="The payload is this file.")
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Each line of standard input is a message.")] = False,
    json_lines: Annotated[
        bool,
        typer.Option(
            "--json-lines",
            help="Each line is an object: payload or payload_base64, id, headers, delay, time_to_live.",
        ),
    ] = False,
    message_id: Annotated[str, typer.Option("--id", help="The message's id: it is accepted once.")] = "",
    header: Annotated[list[str] | None, typer.Option("--header", "-H", metavar="K=V", help="A header.")] = None,
    delay: Annotated[
        timedelta | None,
        typer.Option("--delay", metavar="SPAN", parser=parse_span, help="Joins the line after this long."),
    ] = None,
    time_to_live: Annotated[
        timedelta | None,
        typer.Option(
            "--time-to-live", "--ttl", metavar="SPAN", parser=parse_span, help="Expires this long after the put."
        ),
    ] = None,
    wait: WaitOption = None,
    show_place: Annotated[
        bool, typer.Option("--show-place", help="Tell the place in line on standard error while waiting for room.")
    ] = False,
    close: Annotated[
        bool, typer.Option("--close", help="Close the queue afterwards, unless not all was taken that may be.")
    ] = False,
    on_duplicate: Annotated[str, typer.Option(help="For a known id: reject, keep or replace.")] = "reject",
    create: Annotated[bool, typer.Option("--create/--no-create", help="Make the queue if there is none.")] = True,
) -> None:
    """Put messages into a queue, which is made if there is none.

    Without a payload all of standard input is one. Lines are put in order, as they come; while the queue is full they
    wait for as long as it takes, unless --wait says how long each batch may.
    """
    if on_duplicate not in ("reject", "keep", "replace"):
        raise typer.BadParameter("reject, keep or replace", param_hint="--on-duplicate")
    source = _Source(
        payload=payload,
        file=file,
        lines=lines,
        json_lines=json_lines,
        id=message_id,
        headers=parse_headers(header or []),
        delay=delay,
        time_to_live=time_to_live,
    )
    source.check()
    is_patient = wait is None and (lines or json_lines)
    if show_place and not (is_patient or wait):
        raise typer.BadParameter("only who waits has a place: give --wait, too", param_hint="--show-place")
    producer = name_of_this_run() if show_place else ""

    async def action(client: Client, output: Output) -> ExitCode | None:
        sender = _Sender(
            client.queue(queue),
            wait=wait,
            is_patient=is_patient,
            creates=create,
            on_duplicate=cast("OnDuplicateName", on_duplicate),
            producer=producer,
        )
        async with showing_place(client.queue(queue), producer, output) if show_place else nullcontext():
            code, held_up = await _send_all(source, sender, output, is_many=lines or json_lines)
        if close and held_up is None:  # else the rest can still be put
            await sender.close()
        elif close and not output.as_json:
            is_full = isinstance(held_up, QueueFull)
            output.notice(f"not closed: {'there was no room for all' if is_full else 'not all was taken'}")
        return code

    perform(context, action)


async def _send_all(
    source: _Source, sender: _Sender, output: Output, *, is_many: bool
) -> tuple[ExitCode, HeadwayError | None]:
    """What to end with, and why it stopped if what it did not put may be taken later."""
    code = ExitCode.OK
    shows_progress = is_many and not output.as_json and output.errors.is_terminal
    progress = Progress(
        SpinnerColumn(),
        TextColumn("{task.completed:,.0f} messages"),
        TimeElapsedColumn(),
        console=output.errors,
        disable=not shows_progress,
    )
    try:
        with progress:
            task = progress.add_task("put", total=None)
            async for messages in source.batches():
                for result in await sender.send(messages):
                    code = max(code, _report(output, result, is_many=is_many))
                    held_up = held_up_by([result])
                    if held_up is not None or result.error.reason == ErrorReason.ERROR_REASON_QUEUE_CLOSED:
                        return code, held_up  # what comes behind must not overtake it
                progress.update(task, completed=sender.accepted_count)
    finally:
        if is_many and not output.as_json:
            output.notice(f"put {'at least ' if sender.is_in_doubt else ''}{sender.accepted_count} messages")
    return code, None


def _report(output: Output, result: PutResult, *, is_many: bool) -> ExitCode:
    """Tells people and scripts what became of one message."""
    failed = from_status(result.error) if result.HasField("error") else None
    if output.as_json:
        output.message(result)
    elif failed is not None:
        output.notice(f"refused: {result.id + ': ' if result.id else ''}{failed}")
    elif not is_many:
        place = f"ticket {result.ticket}, position {result.position}" if result.ticket else "not in line yet"
        known = "known already, with another body" if result.body_differs else "known already"
        output.line(f"{result.id}: {known if result.deduplicated else place}")
    return exit_code(failed) if failed is not None else ExitCode.OK
