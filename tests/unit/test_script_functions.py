"""Functions of scripts are made when they are first called, and nothing but their uses is touched for that."""

from __future__ import annotations

import pytest

from headwayd.store.script_functions import made_when_called

DOUBLE = "local function double(x) return 2 * x end"
TWICE = "local function twice(x)\n  return double(double(x))   -- not double(x)\nend"


def test_uses_become_looks_into_the_table() -> None:
    text = made_when_called([DOUBLE, TWICE], "return 'x'..twice(1)")
    assert "f = function(x) return 2 * x end" in text
    assert "return F[1](F[1](x))   -- not double(x)" in text
    assert text.endswith("\nreturn 'x'..F[2](1)")


def test_each_function_is_reached_by_its_number() -> None:
    functions = [f"local function f_{number}() return {number} end" for number in range(1, 8)]
    lines = made_when_called(functions, "return 0").splitlines()
    for number in range(1, 8):
        low, high = 1, 8  # what n is known to be from the choices on the way: from low on, below high
        ways: list[tuple[int, int]] = []
        for line in lines:
            if line.startswith("if n < "):
                ways.append((low, high))
                high = int(line.split()[3])
            elif line == "else":
                low, high = high, ways[-1][1]
            elif line == "end" and ways:
                low, high = ways.pop()
            elif line == f"f = function() return {number} end":
                assert (low, high) == (number, number + 1)
                break
        else:
            pytest.fail(f"nothing makes function {number}")


def test_fields_texts_and_comments_with_the_name_of_a_function_stay() -> None:
    own = "return { S.double, S:double(), 'double', \"double\", T['double'] }   -- double"
    assert made_when_called([DOUBLE], own).endswith(f"\n{own}")


@pytest.mark.parametrize(
    "code",
    [
        "local double = 1",
        "local one, double = 1, 2",
        "local function double() end",
        "return each(function(double) end)",
        "for at, double in ipairs(all) do end",
    ],
)
def test_a_variable_with_the_name_of_a_function_is_refused(code: str) -> None:
    with pytest.raises(ValueError, match="double"):
        made_when_called([DOUBLE], code)


def test_a_script_without_functions_stays_as_it_is() -> None:
    assert made_when_called([], "return 1") == "return 1"


def test_what_every_step_runs_through_is_made_with_the_table_and_the_rest_by_number_behind_it() -> None:
    functions = [DOUBLE, "local function add(x) return double(x) end   -- often", TWICE]
    assert made_when_called(functions, "return twice(add(1))").splitlines() == [
        "local F",
        "F = {",
        "function(x) return F[2](x) end   -- often",
        ",",
        "}",
        "setmetatable(F, { __index = function(_, n)",
        "local f",
        "if n < 3 then",
        "f = function(x) return 2 * x end",
        "else",
        "f = function(x)",
        "  return F[2](F[2](x))   -- not double(x)",
        "end",
        "end",
        "F[n] = f",
        "return f",
        "end })",
        "return F[3](F[1](1))",
    ]
