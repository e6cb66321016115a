"""Functions of a script that are made when they are first called, and not all of them at its beginning.

Lua makes a closure of every function that it comes past, and looks for each variable which that shares with others
among all those shared before. A script runs through a fifth of the functions that it includes, and making the rest took
a third of the store's time for a Put. So the functions of includes become entries of one table, by number, whose
`__index` makes the one that is asked for. Those that nearly every step runs through are made with the table, which
costs less than half of coming past them one by one: a Get of one message that acks another runs a tenth fewer
instructions by it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache

TABLE = "F"
# Made at once, wherever a script has them.
OF_EVERY_STEP = frozenset(
    "add commit count_extras count_rate decayed do_what_is_due each_chunk has_extra is_life load mend_not_full next_due"
    " open policy_of refuse_newer role_is_free room_of set text_of".split()
)
# And those of the scripts that messages go through, where nothing out of the ordinary is to be done.
_OF_ACKS = frozenset(
    "ack_leases bits_of fields_of forget_leases holders_and_ids is_fresh named_leases nonce_of page_of page_prefixes"
    " page_to_change read_bundle remove_fields remove_members set_bit touch_remembered with_bytes write_page"
    " write_pages".split()
)
OF_MOST_STEPS = {
    "put": frozenset("first_producer join_bare note_time push_arguments".split()),
    "get": _OF_ACKS
    | frozenset(
        "add_members each_share first_time fresh_part fresh_rest keep_fresh keep_lease lease_plain leased_count"
        " new_leasing note_run pack_holder put_runs_of_each set_fields take_first text_of_runs time_of"
        " write_leases".split()
    ),
    "ack": _OF_ACKS,
}

_HEAD = re.compile(r"local function (\w+)(\(.*)$", re.DOTALL)
# Texts and comments are passed over. A name behind a colon or one dot is a field's; behind two it is a use.
_TOKEN = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|--[^\n]*|(?<![\w:])(?<!(?<!\.)\.)[A-Za-z_]\w*")
_VARIABLES = re.compile(r"\blocal (?:function )?([\w, ]+)|\bfunction\b[^(\n]*\(([^)]*)\)|\bfor ([\w, ]+) (?:in|=)")


def is_function(piece: str) -> bool:
    """Whether a piece of a script is a function of the first column."""
    return _HEAD.match(piece) is not None


def made_when_called(functions: Sequence[str], rest: str, script: str = "") -> str:
    """The functions as one piece that makes each at its first call, or at once if it is one `OF_EVERY_STEP`, or
    `OF_MOST_STEPS` of this script; and behind it `rest`, which calls them.

    Raises ValueError if a variable has the name of a function: its uses could not be told apart.
    """
    if not functions:
        return rest
    heads = [match for piece in functions if (match := _HEAD.match(piece))]
    of_most = OF_EVERY_STEP | OF_MOST_STEPS.get(script, frozenset())
    heads.sort(key=lambda head: head[1] not in of_most)
    numbers = {head[1]: number for number, head in enumerate(heads, start=1)}
    if taken := numbers.keys() & set().union(*map(_variables, [*(f"function{head[2]}" for head in heads), rest])):
        raise ValueError(f"variables have names of functions: {sorted(taken)}")
    made = [f"function{_numbered(head[2], numbers)}" for head in heads]
    at_once = sum(head[1] in of_most for head in heads)
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
