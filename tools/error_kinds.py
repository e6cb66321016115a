"""Writes the Python client's tree of errors: a class for each reason of the schema, below one for each status code."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = ROOT / "proto/headway/v1/error_reason.proto"
KEPT = ROOT / "clients/python/headway/core/errors.py"
_WIDTH = 120

# The families: what a code that a reason of the schema has, or that gRPC itself fails with, means to the caller. One
# that has a single reason of the same name is the class of both.
_FAMILIES = {
    "NOT_FOUND": ("NotFound", "Something that was named does not exist."),
    "ALREADY_EXISTS": ("AlreadyExists", "Something of this name is there already."),
    "FAILED_PRECONDITION": ("PreconditionFailed", "The queue's state does not allow it."),
    "RESOURCE_EXHAUSTED": ("Exhausted", "There is no room, or too much work, right now."),
    "INVALID_ARGUMENT": ("InvalidArgument", "Something that was given is not acceptable; `violations` tell what."),
    "CANCELLED": ("ClientClosed", "This side closed the connection: it may have happened, and nothing more does."),
    "UNAVAILABLE": ("Unavailable", "Not served. Without a reason: the connection failed, so it may have happened."),
    "DEADLINE_EXCEEDED": ("DeadlineExceeded", "No answer came in time: it may or may not have happened."),
    "UNAUTHENTICATED": ("Unauthenticated", ""),
    "PERMISSION_DENIED": ("PermissionDenied", ""),
    "UNIMPLEMENTED": ("NotImplementedByService", ""),
    "INTERNAL": ("Internal", ""),
}
_NAMES = {"NOT_IMPLEMENTED": "NotImplementedByService"}  # Python has a NotImplementedError
_LASTING_CODES = {"CANCELLED", "NOT_FOUND", "INVALID_ARGUMENT", "UNAUTHENTICATED", "PERMISSION_DENIED", "UNIMPLEMENTED"}
_LASTING_REASONS = {"QUEUE_CLOSED", "QUEUE_DRAINED"}
_ABOVE = {"QUEUE_DELETED": "QueueNotFound"}  # the same to whoever does not care when it went

_HEAD = '''"""What can go wrong, as classes: one for each reason, below one for each code.

{tree}

Made by tools/error_kinds.py from proto/headway/v1/error_reason.proto: do not edit.
"""

from dataclasses import dataclass

from grpc import StatusCode as Code

from headway.core.error import KINDS
from headway.core.error import HeadwayError as HeadwayError  # noqa: PLC0414 - the root is had from here, too
from headway.v1.error_reason_pb2 import ErrorReason
'''

_OUTCOME = '''
    @property
    def outcome(self) -> str:
        """How it ended; "" if it is not told."""
        return self.metadata.get("outcome", "")
'''


@dataclass(frozen=True, slots=True)
class _Reason:
    name: str
    code: str
    said: str  # what it means, and its metadata

    @property
    def kind(self) -> str:
        return _NAMES.get(self.name) or "".join(map(str.capitalize, self.name.split("_")))

    @property
    def above(self) -> str:
        """The class that it is a kind of."""
        return _ABOVE.get(self.name) or _FAMILIES[self.code][0]


def _reasons() -> list[_Reason]:
    """The reasons of the schema, each with its comment, which begins with the code."""
    found = re.findall(r"((?:  //.*\n)+)  ERROR_REASON_(\w+) = [1-9]\d*;", SCHEMA.read_text())
    made = []
    for comment, name in found:
        code, _, said = " ".join(line.strip(" /") for line in comment.splitlines()).partition(". ")
        made.append(_Reason(name=name, code=code, said=said))
    return made


def _class(name: str, above: str, said: str, value: str, *, is_lasting: bool) -> str:
    text = f'    """{said}"""'
    if len(text) > _WIDTH:
        first, *rest = textwrap.wrap(said, _WIDTH - 7)
        text = "\n".join(
            [
                f'    """{first}',
                *textwrap.wrap(" ".join(rest), _WIDTH - 4, initial_indent="    ", subsequent_indent="    "),
                '    """',
            ]
        )
    lasting = "    is_passing = False\n" if is_lasting else ""
    return f"@dataclass(eq=False)\nclass {name}({above}):\n{text}\n\n    {value}\n{lasting}"


def _tree(reasons: list[_Reason]) -> str:
    lines = ["    HeadwayError"]
    families = [name for name, _ in _FAMILIES.values()]
    for family in families:
        lines.append(f"    {'└' if family == families[-1] else '├'}── {family}")
        below = [each for each in reasons if each.above == family and each.kind != family]
        for each in below:
            lines.append(f"    │   {'└' if each == below[-1] else '├'}── {each.kind}")
            bar = " " if each == below[-1] else "│"
            lines += [f"    │   {bar}   └── {deep.kind}" for deep in reasons if deep.above == each.kind]
    return "\n".join(lines)


def text() -> str:
    """The whole module."""
    reasons = _reasons()
    parts = [_HEAD.format(tree=_tree(reasons))]
    for code, (family, said) in _FAMILIES.items():
        own = [each for each in reasons if each.kind == family]
        parts.append(
            _class(
                family,
                "HeadwayError",
                own[0].said if own else said,
                f"code: Code = Code.{code}",
                is_lasting=code in _LASTING_CODES,
            )
        )
        below = [each for each in reasons if each.code == code and each.kind != family]
        for each in sorted(below, key=lambda reason: reason.name in _ABOVE):
            value = f"reason: ErrorReason.ValueType = ErrorReason.ERROR_REASON_{each.name}"
            made = _class(each.kind, each.above, each.said, value, is_lasting=each.name in _LASTING_REASONS)
            parts.append(made + (_OUTCOME if each.name == "MESSAGE_FINISHED" else ""))
    # What comes as CANCELLED from outside is a service process that ends, and has not begun the call.
    families = {code: family for code, (family, _) in _FAMILIES.items()} | {"CANCELLED": "Unavailable"}
    kinds = [f"KINDS[Code.{code}] = {family}\n" for code, family in families.items()]
    kinds += [f"KINDS[ErrorReason.ERROR_REASON_{each.name}] = {each.kind}\n" for each in reasons]
    return "\n\n".join([*parts, "".join(kinds)])
