"""The ranges of single fields. Collects everything that is wrong with a request, so that a caller learns it at once."""

from __future__ import annotations

import re
from collections.abc import Sequence

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message as ProtoMessage
from google.protobuf.timestamp_pb2 import Timestamp

from headwayd.domain.errors import FieldInvalid, HeadwayError, TooLarge, Violation
from headwayd.domain.leases import LeaseRuns
from headwayd.domain.limits import MAX_ID_BYTES, Limits, in_words

MAX_LEASE_TOKEN_BYTES = 256  # ours are shorter; anything else gets the answer GONE

_NS_PER_MS = 1_000_000
_NS_PER_SECOND = 1_000_000_000
_MAX_DURATION_SECONDS = 315_576_000_000  # google.protobuf.Duration: ±10,000 years
_MIN_TIMESTAMP_SECONDS = -62_135_596_800  # google.protobuf.Timestamp: 0001-01-01
_MAX_TIMESTAMP_SECONDS = 253_402_300_799  # google.protobuf.Timestamp: 9999-12-31T23:59:59

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")  # Unicode's category Cc, whole


class Checks:
    """What is wrong with one request.

    Readers note a violation and give back a harmless value, so that the checks behind them go on; `finish` raises what
    was noted. The first thing noted decides between FIELD_INVALID and TOO_LARGE.
    """

    __slots__ = ("_error", "_violations", "limits")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._violations: list[Violation] = []
        self._error: tuple[type[HeadwayError], dict[str, str]] | None = None

    def finish(self) -> None:
        """Raises FieldInvalid or TooLarge if anything was noted."""
        if self._error is None:
            return
        error_class, metadata = self._error
        first = self._violations[0]
        text = f"{first.field} {first.description}"
        if len(self._violations) > 1:
            text += f" (and {len(self._violations) - 1} more)"
        raise error_class(text, metadata=metadata, violations=self._violations)

    def invalid(self, field: str, description: str) -> None:
        """Notes that `field` is missing or out of its range."""
        self._note(FieldInvalid, {"field": field}, Violation(field, description))

    def too_large(self, field: str, unit: str, *, size: int, limit: int) -> None:
        """Notes that `field` has more of `unit` than the service accepts."""
        metadata = {"field": field, "limit": str(limit), "size": str(size)}
        self._note(TooLarge, metadata, Violation(field, f"has {size} {unit}, at most {limit} are accepted"))

    def text(self, field: str, value: str, *, max_bytes: int) -> str:
        """A text of at most `max_bytes` bytes of UTF-8."""
        # A character has at most 4 bytes: short texts need not be encoded to be measured.
        if len(value) * 4 > max_bytes and (size := len(value.encode())) > max_bytes:
            self.invalid(field, f"has {size} bytes, at most {max_bytes} are accepted")
        return value

    def label(self, field: str, value: str, *, max_bytes: int) -> str:
        """A text of 1 to `max_bytes` bytes without control characters."""
        if not value:
            self.invalid(field, "is empty")
        return self.text(field, self.line(field, value), max_bytes=max_bytes)

    def line(self, field: str, value: str) -> str:
        """A text of any size without control characters."""
        if _CONTROL.search(value):
            self.invalid(field, "contains a control character")
        return value

    def batch_size(self, field: str, size: int, *, may_be_empty: bool = False) -> bool:
        """Whether a batch of `size` items is worth looking at: not empty, and not larger than the service accepts."""
        limit = self.limits.max_batch_messages
        if size > limit:
            self.too_large(field, "items", size=size, limit=limit)
        elif size == 0 and not may_be_empty:
            self.invalid(field, "is empty")
        return 0 < size <= limit

    def leases(self, field: str, leases: Sequence[str], *, may_be_empty: bool = False) -> Sequence[str]:
        """Lease tokens. Any text will do, one that is no token gets its answer item by item."""
        if not self.batch_size(field, len(leases), may_be_empty=may_be_empty):
            return ()
        if type(leases) is LeaseRuns:  # it has nothing but tokens
            return leases
        named = tuple(leases)  # each is made anew whenever a request is asked for it
        if max(map(len, named)) * 4 > MAX_LEASE_TOKEN_BYTES:
            for index, lease in enumerate(named):
                self.text(f"{field}[{index}]", lease, max_bytes=MAX_LEASE_TOKEN_BYTES)
        return named

    def message_ids(self, field: str, ids: Sequence[str], *, may_be_empty: bool = False) -> tuple[str, ...]:
        """Ids of messages, those that the service made among them."""
        if not self.batch_size(field, len(ids), may_be_empty=may_be_empty):
            return ()
        for index, message_id in enumerate(ids):
            self.label(f"{field}[{index}]", message_id, max_bytes=MAX_ID_BYTES)
        return tuple(ids)

    def count(self, field: str, value: int, *, highest: int, default: int, lowest: int = 1) -> int:
        """A whole number from `lowest` to `highest`; 0 means `default`."""
        if value == 0:
            return default
        if not lowest <= value <= highest:
            self.invalid(field, f"is {value}, must be {lowest} to {highest}")
            return default
        return value

    def number(self, field: str, value: float, *, lowest: float, highest: float, default: float) -> float:
        """A number from `lowest` to `highest`; 0 means `default`, and what is not a number is refused."""
        if value == 0:
            return default
        if not lowest <= value <= highest:  # also true for NaN
            self.invalid(field, f"is {value}, must be {lowest} to {highest}")
            return default
        return value

    def span_ms(
        self,
        owner: ProtoMessage,
        name: str,
        field: str,
        *,
        lowest_ms: int,
        highest_ms: int,
        default_ms: int,
        is_exact: bool = False,
    ) -> int:
        """The Duration `owner.name`, whose path is `field`, in milliseconds; `default_ms` if it is unset.

        What is finer than a millisecond is rounded up, or refused if `is_exact`. The range holds for the value as it
        was given, before it is rounded.
        """
        if not owner.HasField(name):
            return default_ms
        span: Duration = getattr(owner, name)
        is_mixed = (span.seconds > 0 > span.nanos) or (span.seconds < 0 < span.nanos)
        if abs(span.seconds) > _MAX_DURATION_SECONDS or abs(span.nanos) >= _NS_PER_SECOND or is_mixed:
            self.invalid(field, "is no valid duration")
            return default_ms
        total_ns = span.seconds * _NS_PER_SECOND + span.nanos
        if not lowest_ms * _NS_PER_MS <= total_ns <= highest_ms * _NS_PER_MS:
            self.invalid(field, f"must be {in_words(lowest_ms)} to {in_words(highest_ms)}")
            return default_ms
        if is_exact and total_ns % _NS_PER_MS:
            self.invalid(field, "is finer than a millisecond")
            return default_ms
        return -(-total_ns // _NS_PER_MS)

    def instant_ms(self, instant: Timestamp, field: str) -> int:
        """A Timestamp in milliseconds since 1970, rounded up; an instant before 1970 is 1970, which is as much past.

        How far ahead it lies is judged by the store, whose clock counts.
        """
        is_in_range = _MIN_TIMESTAMP_SECONDS <= instant.seconds <= _MAX_TIMESTAMP_SECONDS
        if not is_in_range or not 0 <= instant.nanos < _NS_PER_SECOND:
            self.invalid(field, "is no valid timestamp")
            return 0
        return max(instant.seconds * 1_000 + -(-instant.nanos // _NS_PER_MS), 0)

    def _note(self, error_class: type[HeadwayError], metadata: dict[str, str], violation: Violation) -> None:
        self._violations.append(violation)
        if self._error is None:
            self._error = (error_class, metadata)
