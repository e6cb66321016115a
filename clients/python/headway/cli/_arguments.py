"""Reads what people type: spans of time, headers, and the annotations that the commands share."""

import os
import re
import socket
from datetime import datetime, timedelta
from typing import Annotated

import typer

from headway._spans import instant

_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")
_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}

MOST_COUNT = 2**32 - 1  # that a field of 32 bits holds, as those of counts are
MOST_NUMBER = 2**64 - 1


def parse_span(text: str) -> timedelta:
    """A span: a number with ms, s, m, h or d behind it; a bare number is seconds. Raises typer.BadParameter."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a span such as 30, 30s, 500ms, 5m, 1h or 2d")
    try:
        return float(match[1]) * _UNITS[match[2] or "s"]
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is too long a span") from None


def parse_instant(text: str) -> datetime:
    """An instant as ISO 8601 has it, with its time zone. Raises typer.BadParameter."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not an instant such as 2030-01-31T08:00:00Z") from None
    if moment.tzinfo is None:
        raise typer.BadParameter(f"{text!r} needs a time zone, such as 2030-01-31T08:00:00Z or …T09:00:00+01:00")
    try:
        instant(moment)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return moment


def this_process() -> str:
    """A consumer's name that tells people which process it is: HOST:PID."""
    return f"{socket.gethostname()}:{os.getpid()}"


def parse_headers(pairs: list[str]) -> dict[str, str]:
    """Headers from "key=value" texts. Raises typer.BadParameter."""
    headers: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise typer.BadParameter(f"{pair!r} is not key=value", param_hint="--header")
        headers[key] = value
    return headers


QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.", show_default=False)]
MessageIds = Annotated[list[str], typer.Argument(metavar="ID…", help="The messages' ids.", show_default=False)]
WaitOption = Annotated[
    timedelta | None,
    typer.Option("--wait", metavar="SPAN", parser=parse_span, help="How long to wait, as 30, 500ms, 5m or 1h."),
]
LeaseOption = Annotated[
    timedelta | None,
    typer.Option("--lease", metavar="SPAN", parser=parse_span, help="How long a lease lasts; default: the policy's."),
]
ConsumerOption = Annotated[
    str, typer.Option("--consumer", metavar="NAME", help="Who this is, for people who look; default HOST:PID.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
