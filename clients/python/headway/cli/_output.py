"""Writes what the commands found: one JSON object a line for scripts, tables and sentences for people."""

import base64
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from headway.core.error import HeadwayError
from headway.v1.queue_pb2 import Queue as QueueState

_PIPE_WIDTH = 10_000  # columns of a table that no terminal shows: nothing is cut off


def to_plain(message: Message) -> dict[str, Any]:
    """A message as JSON can say it: the schema's names; numbers as numbers; spans as "1.500s"; instants as ISO 8601.

    Enum values are spelled without their prefix. Bytes are text under their own name if they are UTF-8, else base64
    under the name with `_base64`. Fields that are unset and have presence are left out.
    """
    plain: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                plain[field.name] = dict(value)
            else:
                plain[field.name] = [_plain_value(field, item) for item in value]
        elif field.type == FieldDescriptor.TYPE_BYTES:
            plain.update(bytes_entry(field.name, value))
        elif not field.has_presence or message.HasField(field.name):
            plain[field.name] = _plain_value(field, value)
    return plain


def bytes_entry(name: str, value: bytes) -> dict[str, str]:
    """Bytes as one JSON entry: text if they are UTF-8, else base64 under `name`_base64."""
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode("ascii")}


def _plain_value(field: Any, value: Any) -> Any:
    if isinstance(value, Duration | Timestamp):
        return value.ToJsonString()
    if isinstance(value, Message):
        return to_plain(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name.removeprefix(_enum_prefix(field.enum_type.name)) if known is not None else value
    return value


def _enum_prefix(name: str) -> str:
    return "".join(f"_{c}" if c.isupper() else c.upper() for c in name).lstrip("_") + "_"


def state_in_a_word(queue: QueueState) -> str:
    """Whether a queue takes and hands out messages."""
    return "closed" if queue.closed else "paused" if queue.paused else "open"


def printable(text: str, longest: int = 0) -> str:
    """The text in one line that does nothing to a terminal; cut to `longest` characters if that is not 0."""
    shown = "".join(c if c.isprintable() else "·" for c in text)
    return shown[: longest - 1] + "…" if longest and len(shown) > longest else shown


class Output:
    """Where a command writes: results on standard output, notices on standard error."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.errors = Console(stderr=True, highlight=False)

    def record(self, fields: dict[str, Any]) -> None:
        """One JSON object on a line of its own."""
        self.raw(json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")

    def record_error(self, fields: dict[str, Any]) -> None:
        """One JSON object on a line of standard error."""
        sys.stderr.write(json.dumps(fields, ensure_ascii=False) + "\n")
        sys.stderr.flush()

    def message(self, message: Message) -> None:
        """A message of the schema as JSON."""
        self.record(to_plain(message))

    def raw(self, data: bytes) -> None:
        """Bytes as they are."""
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def line(self, text: str) -> None:
        """A sentence for people."""
        self.raw(text.encode("utf-8", "replace") + b"\n")

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """A table for people; numbers stand right."""
        table = Table(box=box.SIMPLE_HEAD if sys.stdout.isatty() else None, pad_edge=False)
        made = [[item if isinstance(item, int | float) else printable(str(item)) for item in row] for row in rows]
        for index, name in enumerate(columns):
            numeric = bool(made) and all(isinstance(row[index], int | float) for row in made)
            table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
        for row in made:
            table.add_row(*(Text(str(item)) for item in row))
        Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH).print(table)

    def notice(self, text: str) -> None:
        """A sentence on standard error."""
        sys.stderr.write(f"headway: {printable(text)}\n")
        sys.stderr.flush()

    def failure(self, error: HeadwayError) -> None:
        """A failed call on standard error."""
        if not self.as_json:
            parts = [f"{v.field}: {v.description}" for v in error.violations]
            self.notice("; ".join([str(error), *parts]) if len(parts) > 1 else str(error))  # one stands in the text
            return
        fields = {
            "reason": error.reason_name,
            "code": error.code.name,
            "message": str(error),
            "metadata": dict(error.metadata),
            "retry_after_seconds": error.retry_after.total_seconds() if error.retry_after else None,
            "violations": [{"field": v.field, "description": v.description} for v in error.violations],
        }
        self.record_error({"error": fields})

    def forget_stdout(self) -> None:
        """After a broken pipe: nothing more is written, and nothing complains at exit."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
