"""What a scenario expects, and whether an answer is that: YAML tags, references, and a comparison of parts.

A mapping is met by one that has its keys (a key that is not there counts as unset: 0, "", false, empty); a list by one
of the same length; numbers also by their text, because JSON has 64-bit ones so. `${name}` stands for what was kept.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

Variables = Mapping[str, Any]
_REFERENCE = re.compile(r"\$\{([\w.-]+)\}")


class Mismatch(AssertionError):
    """An answer is not what was expected; the text says where."""


@dataclass(frozen=True, slots=True)
class Matcher:
    """An expectation that is more than a value: `meets` compares an answer with the tag's argument."""

    tag: str
    argument: Any
    meets: Callable[[Any, Any], bool]


@dataclass(frozen=True, slots=True)
class Times:
    """`count` copies of an item, in which `${i}` counts from 1."""

    count: int
    item: Any


def encoded(payload: bytes) -> str:
    """Bytes, as JSON has them."""
    return base64.b64encode(payload).decode()


def seconds(text: Any) -> float:
    """A span of protobuf's JSON; unset is 0."""
    return float(str(text).removesuffix("s")) if text else 0.0


def number(text: Any) -> float:
    """A number of protobuf's JSON; unset is 0."""
    return float(text) if text else 0.0


_MATCHERS: dict[str, Callable[[Any, Any], bool]] = {
    "!any": lambda actual, _: not _is_unset(actual),
    "!unset": lambda actual, _: _is_unset(actual),
    "!re": lambda actual, pattern: re.fullmatch(str(pattern), str(actual)) is not None,
    "!not": lambda actual, other: not _meets(actual, other),
    "!ge": lambda actual, bound: number(actual) >= bound,
    "!le": lambda actual, bound: number(actual) <= bound,
    "!seconds": lambda actual, bounds: bounds[0] <= seconds(actual) <= bounds[1],
    "!len": lambda actual, length: len(actual or ()) == length,
    "!has": lambda actual, items: all(any(_meets(each, item) for each in actual or ()) for item in items),
    "!unordered": lambda actual, items: (
        len(actual or ()) == len(items) and all(any(_meets(each, item) for each in actual) for item in items)
    ),
}


_Safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # by libyaml, where PyYAML comes with it


class Loader(_Safe):  # type: ignore[misc]  # one of two, by what is installed
    """YAML with the tags above, and those that make bytes: !text, !hex, !fill; and !times, which makes lists."""


def _argument(loader: Any, node: yaml.Node) -> Any:
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    assert isinstance(node, yaml.ScalarNode)
    if node.style:  # in quotes: a text
        return node.value
    plain = yaml.ScalarNode(loader.resolve(yaml.ScalarNode, node.value, (True, False)), node.value)
    return loader.construct_object(plain, deep=True)


def _add(tag: str, make: Callable[[Any], Any]) -> None:
    Loader.add_constructor(tag, lambda loader, node: make(_argument(loader, node)))


def _matcher(tag: str, meets: Callable[[Any, Any], bool]) -> Callable[[Any], Matcher]:
    return lambda argument: Matcher(tag, argument, meets)


for _tag, _meets_tag in _MATCHERS.items():
    _add(_tag, _matcher(_tag, _meets_tag))
_add("!text", lambda text: encoded(str(text).encode()))
_add("!hex", lambda text: encoded(bytes.fromhex(str(text))))
_add("!fill", lambda size: encoded(b"x" * size))
_add("!times", lambda parts: Times(parts["count"], parts["item"]))


def load(text: str) -> Any:
    """Reads YAML with the suite's tags."""
    return yaml.load(text, Loader)


def filled(value: Any, variables: Variables) -> Any:
    """The value with its references replaced; one that is nothing but a reference keeps the type of what was kept.

    Raises Mismatch for a name that nothing was kept under.
    """

    def look_up(match: re.Match[str]) -> Any:
        if match[1] not in variables:
            raise Mismatch(f"nothing was kept as {match[1]!r}")
        return variables[match[1]]

    if isinstance(value, str):
        whole = _REFERENCE.fullmatch(value)
        return look_up(whole) if whole else _REFERENCE.sub(lambda match: str(look_up(match)), value)
    if isinstance(value, dict):
        return {filled(key, variables): filled(each, variables) for key, each in value.items()}
    if isinstance(value, list):
        return [filled(each, variables) for each in value]
    if isinstance(value, Times):
        return [filled(value.item, {**variables, "i": n + 1}) for n in range(value.count)]
    if isinstance(value, Matcher):
        return Matcher(value.tag, filled(value.argument, variables), value.meets)
    return value


def compare(actual: Any, expected: Any, path: str = "answer") -> None:
    """Raises Mismatch, with the place, if the answer is not what was expected."""
    if isinstance(expected, Matcher):
        if not expected.meets(actual, expected.argument):
            raise Mismatch(f"{path} is {_short(actual)}, expected {expected.tag} {_short(expected.argument)}")
    elif isinstance(expected, dict):
        if not isinstance(actual, dict) and not (actual is None and not expected):
            raise Mismatch(f"{path} is {_short(actual)}, expected {_short(expected)}")
        for key, each in expected.items():
            compare((actual or {}).get(key), each, f"{path}.{key}")
    elif isinstance(expected, list):
        if len(actual or ()) != len(expected) or not isinstance(actual or [], list):
            raise Mismatch(f"{path} has {len(actual or ())} items, expected {len(expected)}: {_short(actual)}")
        for index, each in enumerate(expected):
            compare(actual[index], each, f"{path}[{index}]")
    elif not _same(actual, expected):
        raise Mismatch(f"{path} is {_short(actual)}, expected {_short(expected)}")


def part_of(answer: Any, path: str) -> Any:
    """The part of an answer at a path such as `deliveries.0.lease`. Raises Mismatch if there is none."""
    for step in path.split("."):
        try:
            answer = answer[int(step)] if isinstance(answer, list) else answer[step]
        except (KeyError, IndexError, TypeError, ValueError):
            raise Mismatch(f"the answer has no {path}: {_short(answer)}") from None
    return answer


def _meets(actual: Any, expected: Any) -> bool:
    try:
        compare(actual, expected)
    except Mismatch:
        return False
    return True


def _is_unset(value: Any) -> bool:
    return value is None or value in (0, "", False, "0") or (isinstance(value, dict | list) and not value)


def _same(actual: Any, expected: Any) -> bool:
    if expected is None or isinstance(expected, bool):
        return actual is expected or (expected is False and actual is None)
    if isinstance(expected, int | float) and not isinstance(actual, bool):
        try:
            return number(actual) == expected
        except (TypeError, ValueError):
            return False
    return bool(actual == expected) or (expected == "" and actual is None)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 600 else f"{text[:600]}… ({len(text)} characters)"
