"""Carries Python's times onto the wire, beside the spans of the core: exact ones, and instants."""

from datetime import datetime, timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from headway.core.connecting import span


def exact(given: timedelta) -> Duration:
    """The span as it is. Raises TypeError if it is not a timedelta."""
    if not isinstance(given, timedelta):
        raise TypeError(f"a span is a datetime.timedelta, not {type(given).__name__}")
    wire = Duration()
    wire.FromTimedelta(given)
    return wire


def instant(moment: datetime) -> Timestamp:
    """The instant. Raises TypeError if it is not a datetime, ValueError if it has no time zone or no year in UTC."""
    if not isinstance(moment, datetime):
        raise TypeError(f"an instant is a datetime.datetime, not {type(moment).__name__}")
    if moment.tzinfo is None:
        raise ValueError("an instant needs a time zone, for example datetime.now(UTC)")
    wire = Timestamp()
    try:
        wire.FromDatetime(moment)
    except OverflowError:
        raise ValueError(f"in UTC {moment.isoformat()} is outside of the years 1 to 9999") from None
    return wire


def available(when: timedelta | datetime | None) -> tuple[Duration | None, Timestamp | None]:
    """A delay or an instant, whichever was given; the other is None."""
    return (None, instant(when)) if isinstance(when, datetime) else (span(when), None)
