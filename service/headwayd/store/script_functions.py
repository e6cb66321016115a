"""Functions of a script that are made when they are first called, and not all of them at its beginning.

Lua makes a closure of every function that it comes past, and looks for each variable which that shares with others
among all those shared before. A script runs through a fifth of the functions that it includes, and making the rest took
a third of the store's time for a Put. So the functions of includes become entries of one table, by number, whose
`__index` makes the one that is asked for. Those few that nearly every step runs through are made with the table, which
takes half as long as to come past them one by one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache

TABLE = "F"
# Made at once, wherever a script has them.
OF_EVERY_STEP = frozenset(
    "add commit count_rate decayed do_what_is_due each_chunk is_life load mend_not_full next_due open policy_of"
    " role_is_free room_of set text_of".split()
)

_HEAD = re.compile(r"local function (\w+)(\(.*)$", re.DOTALL)
# Texts and comments are passed over. A name behind a colon or one dot is a field's; behind two it is a use.
_TOKEN = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|--[^\n]*|(?<![\w:])(?<!(?<!\.)\.)[A-Za-z_]\w*")
_VARIABLES = re.compile(r"\blocal (?:function )?([\w, ]+)|\bfunction\b[^(\n]*\(([^)]*)\)|\bfor ([\w, ]+) (?:in|=)")


def is_function(piece: str) -> bool:
    """Whether a piece of a script is a function of the first column."""
    return _HEAD.match(piece) is not None


def made_when_called(functions: Sequence[str], rest: str) -> str:
    """The functions as one piece that makes each at its first call, or at once if it is one `OF_EVERY_STEP`, and behind
    it `rest`, which calls them.

    Raises ValueError if a variable has the name of a function: its uses could not be told apart.
    """
    if not functions:
        return rest
    heads = [match for piece in functions if (match := _HEAD.match(piece))]
    heads.sort(key=lambda head: head[1] not in OF_EVERY_STEP)
    numbers = {head[1]: number for number, head in enumerate(heads, start=1)}
    if taken := numbers.keys() & set().union(*map(_variables, [*(f"function{head[2]}" for head in heads), rest])):
        raise ValueError(f"variables have names of functions: {sorted(taken)}")
    made = [f"function{_numbered(head[2], numbers)}" for head in heads]
    at_once = sum(head[1] in OF_EVERY_STEP for head in heads)
    table = "\n".join([f"local {TABLE}", f"{TABLE} = {{", *(f"{one}\n," for one in made[:at_once]), "}", ""])
    if later := [f"f = {one}" for one in made[at_once:]]:
        maker = f"function(_, n)\nlocal f\n{_choice(later, at_once + 1)}\n{TABLE}[n] = f\nreturn f\nend"
        table += f"setmetatable({TABLE}, {{ __index = {maker} }})\n"
    return f"{table}{_numbered(rest, numbers)}"


def _numbered(code: str, numbers: Mapping[str, int]) -> str:
    """The code with each use of a function made a look into the table."""
    return _TOKEN.sub(lambda match: f"{TABLE}[{numbers[match[0]]}]" if match[0] in numbers else match[0], code)


def _choice(makers: Sequence[str], first: int) -> str:
    """Runs the maker with number n, of which the first is `first`."""
    if len(makers) == 1:
        return makers[0]
    middle = len(makers) // 2
    low, high = _choice(makers[:middle], first), _choice(makers[middle:], first + middle)
    return f"if n < {first + middle} then\n{low}\nelse\n{high}\nend"


@cache  # most functions stand in many scripts
def _variables(code: str) -> set[str]:
    """The names of all variables and parameters."""
    bare = _TOKEN.sub(lambda match: match[0] if match[0][0].isalpha() or match[0][0] == "_" else "", code)
    found = [
        name for match in _VARIABLES.finditer(bare) for group in match.groups() if group for name in group.split(",")
    ]
    return {name.strip() for name in found}
