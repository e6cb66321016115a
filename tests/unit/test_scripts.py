"""Scripts are put together without what they do not use, and with their constants written out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headwayd.store import script_functions, scripts
from headwayd.store.pipelines import READ_ONLY

_DEFINED = re.compile(r"^local function (\w+)\(", re.MULTILINE)
_INCLUDES = re.compile(r"^-- @include (.+)$", re.MULTILINE)
_TOP = re.compile(r"^local (?:function )?", re.MULTILINE)
_NO_WRITES = b"#!lua flags=no-writes\n"
# Lua's own limit of local variables in one function, of which loops and blocks need some.
MOST_LOCALS = 180


def test_what_nothing_uses_is_left_out_with_what_only_that_used() -> None:
    lines = [
        "local function used() return 1 end   -- said of used()",
        "local function only_by_unused(x)",
        "  return x",
        "end",
        "local function unused()",
        "  return only_by_unused(unused)",
        "end",
        "local kept, gone = 1, 2",
        "local gone_too = 3",
        "local made = { used() }",
        "return used() + kept",
    ]
    assert scripts.needed(lines) == [lines[0], lines[7], lines[9], lines[10]]


def test_a_value_that_something_makes_stays() -> None:
    lines = ["local function act() redis.call('PING') end", "local unread = act()", "return 1"]
    assert scripts.needed(lines) == lines


def test_constants_are_written_out_but_not_within_names_and_texts() -> None:
    lines = ["local MOST, WORD = 10, 'w'   -- why", "return MOST + T.MOST .. 'MOST' .. ALMOST .. WORD .. x.WORD"]
    assert scripts.with_constants(lines) == ["return 10 + T.MOST .. 'MOST' .. ALMOST .. 'w' .. x.WORD"]


def test_entries_of_constant_tables_are_written_out_and_the_tables_go() -> None:
    lines = [
        "local FLAG = {",
        "  HELD = 16,     -- it isn't free, as in OLD = 1",
        "  LAPSED = 2,",
        "}",
        "local CAUSE = { AGE = 'x', OTHER = 'y' }",
        "local made = { HELD = 1 + 1 }",
        "return FLAG.HELD + made.HELD .. CAUSE.OTHER .. S.FLAG",
    ]
    assert scripts.with_constant_tables(lines) == [lines[5], "return 16 + made.HELD .. 'y' .. S.FLAG"]


def test_keys_are_put_together_where_they_are_used() -> None:
    text = scripts.build("put").text.decode()
    assert "redis.call('LPUSH', BASE, " in text
    assert "(K[':x:meta'] or BASE..':x:meta')" in text
    assert "K.meta" not in text


@pytest.mark.parametrize("name", scripts.NAMES)
def test_every_script_that_spells_a_key_has_the_name_of_the_queue(name: str) -> None:
    text = scripts.build(name).text.decode()
    assert ("BASE" in text) == ("\nlocal BASE = KEYS[1]\n" in text)


@pytest.mark.parametrize("name", scripts.NAMES)
def test_every_script_stays_clear_of_luas_limit_of_locals(name: str) -> None:
    text = scripts.build(name).text.decode()
    names = 0
    for line in text.splitlines():
        if match := _TOP.match(line):
            names += 1 if "function" in match[0] else len(line.partition("=")[0].split(","))
    assert names <= MOST_LOCALS


def test_what_is_made_at_once_is_there_under_its_name() -> None:
    defined = {name: set(_DEFINED.findall(_source_of(name))) for name in scripts.NAMES}
    assert set().union(*defined.values()) >= script_functions.OF_EVERY_STEP
    for name, functions in script_functions.OF_MOST_STEPS.items():
        assert defined[name] >= functions - script_functions.OF_EVERY_STEP


def _source_of(name: str) -> str:
    """All that a script includes, and itself."""
    folder, seen, files = Path(scripts.__file__).with_name("lua"), set[Path](), [f"{name}.lua"]
    while files:
        path = folder / files.pop()
        if path not in seen and path.exists():
            seen.add(path)
            for names in _INCLUDES.findall(path.read_text()):
                files += [f"include/{one}.lua" for one in names.split()]
    return "\n".join(path.read_text() for path in seen)


RARE = "closed|returned|side|progress|delayed|producers|place_at"
MAKES = re.compile(rf"(?:'(?:HSET|ZADD|LPUSH)', |(?:set_fields|add_members)\()K\.({RARE})\b")
SAID = "S.extras = 1"
SAID_WITHIN = 3  # lines before
# Who makes such a key without saying so: it is there already, or nothing of the queue is read behind it.
NEED_NOT_SAY = {
    "delete.lua": {"closed"},  # reads no state
    "delay.lua": {"side"},  # of a lease that lapsed: it has been there since
    "put.lua": {"side"},  # of a message that has been given back before
    "kept.lua": {"place_at"},  # of a place that was found there
}


def test_whoever_makes_a_key_that_most_queues_do_not_have_says_so() -> None:
    told = 0
    for path in sorted(Path(scripts.__file__).with_name("lua").rglob("*.lua")):
        lines = path.read_text().splitlines()
        for at, line in enumerate(lines):
            if (made := MAKES.search(line)) and made[1] not in NEED_NOT_SAY.get(path.name, ()):
                assert any(SAID in before for before in lines[max(0, at - SAID_WITHIN) : at]), f"{path.name}:{at + 1}"
                told += 1
    assert told >= len(RARE.split("|"))


def test_what_only_reads_is_known_by_name() -> None:
    reading = {name for name, script in scripts.all_scripts().items() if script.text.startswith(_NO_WRITES)}
    assert reading == READ_ONLY
