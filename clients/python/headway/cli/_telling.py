"""Puts places into words, into JSON, and into pictures at a terminal."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live

from headway._places import Delayed, Eta, Finished, Leased, Outcome, Place, Update, Waiting
from headway.cli._output import bytes_entry, printable

_LONGEST = 60  # characters of a result, a cause or a note
_PICTURES_PER_SECOND = 8


def in_words(told: Update, *, age: timedelta = timedelta(0)) -> str:
    """What was told of a message so long ago, in one line."""
    match told:
        case Waiting():
            return place_in_words(told)
        case Delayed():
            if told.available_at is None:
                return "delayed, joins the line later"
            return f"delayed, joins the line in {span_in_words(told.available_at - told.as_of - age)}"
        case Leased():
            attempt = f"being worked on, attempt {told.attempt}" if told.attempt else "being worked on"
            fraction = "" if told.progress is None else f", {told.progress:.0%}"
            return attempt + fraction + _with(told.note)
        case Finished(outcome=Outcome.UNKNOWN):
            return "not known" + _with(told.cause)
        case Finished():
            more = told.result.decode("utf-8", "replace") if told.outcome is Outcome.DONE else told.cause
            return told.outcome.lower() + _with(more)


def place_in_words(told: Waiting | Place) -> str:
    """A place in line, and the wait if it is known."""
    moved = ", moved back" if told.moved_back else ""
    return f"number {told.position} of {told.length}{eta_in_words(told.eta)}{moved}"


def eta_in_words(eta: Eta) -> str:
    """The wait that half of all waits do not exceed, to stand behind something; nothing if it is not known."""
    return f", about {span_in_words(eta.p50)}" if eta.known and eta.p50 is not None else ""


def span_in_words(span: timedelta) -> str:
    """A span in its most fitting unit, rounded: nobody plans by its seconds if it is hours."""
    seconds = span.total_seconds()
    if seconds < 1:
        return "1 s"
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 1.5 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def _with(text: str) -> str:
    return f": {printable(text, _LONGEST)}" if text else ""


def as_record(told: Update | Place) -> dict[str, Any]:
    """What was told as JSON can say it, in the schema's names."""
    match told:
        case Waiting():
            return {"id": told.id, "state": "WAITING", **_place_record(told)}
        case Place():
            return {"place": told.place, **_place_record(told)}
        case Delayed():
            joins = None if told.available_at is None else instant(told.available_at)
            return {"id": told.id, "state": "DELAYED", "as_of": instant(told.as_of), "available_at": joins}
        case Leased():
            progress = None if told.progress is None else {"fraction": told.progress, "note": told.note}
            return {
                "id": told.id,
                "state": "LEASED",
                "as_of": instant(told.as_of),
                "attempt": told.attempt,
                "progress": progress,
            }
        case Finished():
            return {
                "id": told.id,
                "state": "FINISHED",
                "as_of": instant(told.as_of) if told.as_of is not None else None,
                "outcome": told.outcome.value,
                **bytes_entry("result", told.result),
                "cause": told.cause,
            }


def _place_record(told: Waiting | Place) -> dict[str, Any]:
    return {
        "as_of": instant(told.as_of),
        "position": told.position,
        "length": told.length,
        "limit": told.limit,
        "poll_min": _span(told.poll_min),
        "poll_max": _span(told.poll_max),
        "eta": eta_record(told.eta),
        "moved_back": told.moved_back,
    }


def eta_record(eta: Eta) -> dict[str, Any]:
    """An expected wait as JSON can say it."""
    if eta.p50 is None or eta.p90 is None:
        return {"known": False}
    return {"known": eta.known, "p50": _span(eta.p50), "p90": _span(eta.p90)}


def instant(moment: datetime) -> str:
    """An instant as ISO 8601."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _span(span: timedelta) -> str:
    return f"{span.total_seconds():.3f}s"


@contextmanager
def drawing(
    console: Console, picture: Callable[[], RenderableType], *, screen: bool = False, transient: bool = False
) -> Iterator[Live]:
    """Draws a picture again and again while the block runs; what is written meanwhile stands above it.

    The picture is asked for in a thread. `transient`: nothing of it stays.
    """
    live = Live(
        get_renderable=picture,
        console=console,
        screen=screen,
        transient=transient,
        refresh_per_second=_PICTURES_PER_SECOND,
    )
    logs = [each for each in logging.getLogger().handlers if isinstance(each, logging.StreamHandler)]
    with live:
        for handler in logs:
            handler.setStream(sys.stderr)  # by now rich's, which knows of the picture
        try:
            yield live
        finally:
            for handler in logs:
                handler.setStream(sys.__stderr__)
