"""Commands are the same bytes however their arguments are packed."""

from __future__ import annotations

from typing import Any, cast

from hiredis import pack_command
from hypothesis import given
from hypothesis import strategies as st

from headwayd.store.packing import Run, pack

ARGUMENTS = st.lists(st.one_of(st.binary(max_size=8), st.text(max_size=8), st.integers()), min_size=1, max_size=12)
PAYLOADS = st.one_of(
    st.lists(st.binary(max_size=300), min_size=1, max_size=12),
    st.integers(0, 300).flatmap(lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1)),
)


@given(ARGUMENTS, PAYLOADS)
def test_a_run_is_so_many_arguments(arguments: list[bytes | str | int], payloads: list[bytes]) -> None:
    whole = pack_command(cast(Any, (*arguments, *payloads)))
    assert b"".join(pack([*arguments, Run(payloads)])) == whole
    if len({*map(len, payloads)}) == 1:
        assert b"".join(pack([*arguments, Run(payloads, len(payloads[0]))])) == whole
    assert b"".join(pack([*arguments, *payloads])) == whole
