"""Carries Python's times onto the wire: `timedelta` to Duration, `datetime` to Timestamp. The service judges ranges."""

from datetime import datetime, timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

_MILLISECOND = timedelta(milliseconds=1)
_ZERO = timedelta(0)


def exact(span: timedelta) -> Duration:
    """The span as it is. Raises TypeError if it is not a timedelta."""
    if not isinstance(span, timedelta):
        raise TypeError(f"a span is a datetime.timedelta, not {type(span).__name__}")
    wire = Duration()
    wire.FromTimedelta(span)
    return wire


def whole_milliseconds(span: timedelta) -> Duration:
    """The span, rounded up to whole milliseconds; a negative one as it is, for the service to refuse.

    Raises TypeError if it is not a timedelta.
    """
    wire = exact(span)
    if span > _ZERO and wire.nanos % 1_000_000:
        wire.FromTimedelta(-(-span // _MILLISECOND) * _MILLISECOND)
    return wire


def instant(moment: datetime) -> Timestamp:
    """The instant. Raises TypeError if it is not a datetime, ValueError if it has no time zone."""
    if not isinstance(moment, datetime):
        raise TypeError(f"an instant is a datetime.datetime, not {type(moment).__name__}")
    if moment.tzinfo is None:
        raise ValueError("an instant needs a time zone, for example datetime.now(UTC)")
    wire = Timestamp()
    wire.FromDatetime(moment)
    return wire


def available(when: timedelta | datetime) -> tuple[Duration | None, Timestamp | None]:
    """A delay or an instant, whichever was given; the other is None."""
    if isinstance(when, datetime):
        return None, instant(when)
    return whole_milliseconds(when), None
