"""Puts the Lua scripts together: one file per operation, includes in the order they are named, each once.

Three includes are made here instead of read: `keys`, so that keys are spelled in one file, and `policy` and `limits`,
so that defaults and limits are.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache, partial
from importlib import resources

from headwayd.domain.limits import MAX_DELAY_MS, MAX_LEASE_MS, MAX_REMEMBERED_IDS
from headwayd.domain.model import Policy
from headwayd.store import keys
from headwayd.store.script_functions import is_function, made_when_called
from headwayd.store.status import Status

_CONSTANTS = re.compile(
    r"local ([A-Z][A-Z_0-9]*(?:, [A-Z][A-Z_0-9]*)*) = ((?:\d+|'[^',]*')(?:, (?:\d+|'[^',]*'))*)(?: +--.*)?$"
)
_TABLE = re.compile(r"^local ([A-Z]+) = \{((?:\s*[A-Z]+ = (?:\d+|'\w*'),?(?:\s*--.*)?)+)\s*\}$", re.MULTILINE)
_ENTRY = re.compile(r"([A-Z]+) = (\d+|'\w*')")
_KEY = re.compile(r"\bK\.([a-z_]+)\b")
_CAPITALS = re.compile(r"(?<![\w.'\"])[A-Z][A-Z_0-9]*(?![\w'\"])")
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_FUNCTION = re.compile(r"local function (\w+)\(")
_VALUES = re.compile(r"local (\w+(?:, \w+)*) = (?!.*[({])")
_STATUS = re.compile(r"\bT\.([A-Z_]+)\b")
_INCLUDE = re.compile(r"^-- @include (.+)$", re.MULTILINE)
_OWN = "-- own"  # what stands before it is included


@dataclass(frozen=True, slots=True)
class Script:
    """A whole script and the SHA-1 that the store knows it by."""

    name: str
    text: bytes
    sha: bytes


def _policy_text(value: float) -> str:
    return repr(int(value)) if isinstance(value, bool) else repr(value)


def policy_pairs(policy: Policy, names: tuple[str, ...] | None = None) -> list[str]:
    """Name and value of each policy field, as the scripts keep them."""
    chosen = names if names is not None else tuple(f.name for f in fields(Policy))
    return [text for name in chosen for text in (name, _policy_text(getattr(policy, name)))]


def _policy_include() -> str:
    pairs = policy_pairs(Policy())
    rows = ", ".join(f"{{ '{name}', '{value}' }}" for name, value in zip(pairs[::2], pairs[1::2], strict=True))
    return f"local function policy_defaults() return {{ {rows} }} end\n"


def _limits_include(max_lease_ms: int = MAX_LEASE_MS, max_delay_ms: int = MAX_DELAY_MS) -> str:
    values = f"{max_lease_ms}, {max_delay_ms}, {MAX_REMEMBERED_IDS}"
    return f"local MAX_LEASE_MS, MAX_DELAY_MS, MAX_REMEMBERED_IDS = {values}\n"


def _with_statuses(text: str) -> str:
    """`T.NAME` becomes the word itself: a table of them would be built anew for every call."""
    return _STATUS.sub(lambda match: f"'{Status[match[1]]}'", text)


def _with_keys(text: str) -> str:
    """`K.name` becomes the key: a table of all of them would be built anew for every call, too."""
    return _KEY.sub(lambda match: keys.lua_key(match[1]), text)


_MADE = {
    "keys": keys.lua_table,
    "limits": _limits_include,
    "policy": _policy_include,
}


@cache
def _source(name: str) -> str:
    return resources.files(__package__).joinpath("lua", name + ".lua").read_text()


def _expand(text: str, seen: set[str], replaced: dict[str, str]) -> list[str]:
    lines: list[str] = []
    for line in text.splitlines():
        match = _INCLUDE.match(line)
        if not match:
            lines.append(line)
            continue
        for name in match[1].split():
            if name in seen:
                continue
            seen.add(name)
            if name in replaced:
                included = replaced[name]
            elif name in _MADE:
                included = _MADE[name]()
            else:
                included = _source("include/" + name)
            lines.extend(_expand(included, seen, replaced))
    return lines


def with_constants(lines: list[str]) -> list[str]:
    """The script with its constants written out where they are used. They are named in capitals."""
    constants: dict[str, str] = {}
    rest: list[str] = []
    for line in lines:
        match = _CONSTANTS.match(line)
        if match:
            constants.update(zip(match[1].split(", "), match[2].split(", "), strict=True))
        else:
            rest.append(line)
    return _CAPITALS.sub(lambda match: constants.get(match[0], match[0]), "\n".join(rest)).split("\n")


def _entry(entries: Mapping[str, str], match: re.Match[str]) -> str:
    return entries[match[1]]


def with_constant_tables(lines: list[str]) -> list[str]:
    """The script with the entries of its constant tables written out where they are used, `FLAG.HELD` for example."""
    text = "\n".join(lines)
    while table := _TABLE.search(text):
        rows = (row.partition("--")[0] for row in table[2].splitlines())
        entries = {name: value for row in rows for name, value in _ENTRY.findall(row)}
        text = text[: table.start()] + text[table.end() + 1 :]
        text = re.sub(rf"\b{table[1]}\.([A-Z]+)\b", partial(_entry, entries), text)
    return text.split("\n")


def needed(lines: list[str]) -> list[str]:
    """The script without what nothing in it uses: functions and plain values would be made anew for every call, and Lua
    bears 200 of them at most. They begin in the first column, and so does a function's `end`."""
    pieces = _pieces(lines)
    defined = [_names_defined(piece[0]) for piece in pieces]
    used = [_words("\n".join(piece)) for piece in pieces]
    total = Counter[str]()
    for words in used:  # sum() would copy all of them at every step
        total.update(words)
    is_settled = False
    while not is_settled:
        is_settled = True
        for index, names in enumerate(defined):
            if names and all(total[name] == used[index][name] for name in names):
                total.subtract(used[index])
                pieces[index], defined[index], is_settled = [], (), False
    return [line for piece in pieces for line in piece]


@cache  # most pieces stand in many scripts
def _words(piece: str) -> Counter[str]:
    """How often each word stands in the code of a piece."""
    return Counter(_WORD.findall("\n".join(map(_code, piece.split("\n")))))


def _pieces(lines: list[str]) -> list[list[str]]:
    """Functions that begin in the first column, and single lines."""
    pieces: list[list[str]] = []
    is_open = False
    for line in lines:
        if is_open:
            pieces[-1].append(line)
            is_open = line != "end"
        else:
            pieces.append([line])
            is_open = line.startswith("local function ") and not _code(line).endswith(" end")
    return pieces


def _code(line: str) -> str:
    """The line without its comment."""
    return line.partition("--")[0].rstrip()


def _names_defined(line: str) -> tuple[str, ...]:
    """The names that a piece beginning with this line defines and that may go; none for any other line."""
    if match := _FUNCTION.match(line):
        return (match[1],)
    if match := _VALUES.match(line):
        return tuple(match[1].split(", "))
    return ()


def build(name: str, replaced: dict[str, str] | None = None) -> Script:
    """The script of this operation; `replaced` maps include names to other texts (a test's clock, for example)."""
    first, _, own = _source(name).partition("\n")
    includes = "\n".join(line for line in own.splitlines() if _INCLUDE.match(line))
    expanded = [*_expand(includes, set(), replaced or {}), _OWN, *_INCLUDE.sub("", own).splitlines()]
    with_keys = _with_keys("\n".join(expanded)).split("\n")
    lines = needed(with_constants(with_constant_tables(with_keys)))
    at = lines.index(_OWN)
    included = ["\n".join(piece) for piece in _pieces(lines[:at])]
    functions = [piece for piece in included if is_function(piece)]
    values = [piece for piece in included if not is_function(piece) and _code(piece)]
    whole = "\n".join([first, *values, made_when_called(functions, "\n".join(lines[at:]), name)])
    text = _with_statuses(whole).encode()
    return Script(name=name, text=text, sha=hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())


NAMES = (
    "create",
    "describe",
    "update",
    "pause",
    "close",
    "delete",
    "put",
    "leave",
    "get",
    "ack",
    "delay",
    "extend",
    "withdraw",
    "peek",
    "list_leased",
    "list_dead",
    "redrive",
    "adopt",
    "drop_dead",
    "count_dead",
    "weigh",
    "check",
    "places",
    "keep_place",
    "stands",
    "blocked",
    "drop_absent",
    "find_absent",
    "release_absent",
    "feed",
    "purge",
    "sweep",
    "repair",
)


def all_scripts(max_lease_ms: int = MAX_LEASE_MS, max_delay_ms: int = MAX_DELAY_MS) -> dict[str, Script]:
    """Every script by name; these limits, which an operator may set, are written out in them."""
    return _all_with(max_lease_ms, max_delay_ms)


@cache
def _all_with(max_lease_ms: int, max_delay_ms: int) -> dict[str, Script]:
    replaced = {"limits": _limits_include(max_lease_ms, max_delay_ms)}
    return {name: build(name, replaced) for name in NAMES}
