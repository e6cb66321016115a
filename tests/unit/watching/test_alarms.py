"""Alarms come when they were set for, once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwayd.engine.watching.alarms import Alarms


@given(st.lists(st.tuples(st.sampled_from(["set", "drop", "pop"]), st.integers(0, 9), st.integers(0, 30))))
def test_alarms_are_a_table_that_is_searched_quickly(steps: list[tuple[str, int, int]]) -> None:
    alarms: Alarms[int] = Alarms()
    table: dict[int, float] = {}
    for step, who, at in steps:
        if step == "set":
            alarms.set(who, at)
            table[who] = at
        elif step == "drop":
            alarms.drop(who)
            table.pop(who, None)
        else:
            due = {one for one, its in table.items() if its <= at}
            came = alarms.pop(at)
            assert set(came) == due
            assert len(came) == len(due)
            for one in due:
                del table[one]
        assert len(alarms) == len(table)
        assert alarms.first() == min(table.values(), default=None)


def test_setting_an_alarm_again_and_again_keeps_no_heap_of_old_ones() -> None:
    alarms: Alarms[str] = Alarms()
    for at in range(10_000):
        alarms.set("one", at)
    assert len(alarms._heap) < 100
    assert alarms.pop(9_998) == []
    assert alarms.pop(9_999) == ["one"]
