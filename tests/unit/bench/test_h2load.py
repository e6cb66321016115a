"""What is read of h2load's log."""

from __future__ import annotations

from bench.h2load import times_of


def test_calls_that_never_began_have_taken_no_time() -> None:
    log = "1764500000000000\t200\t1500\n0\t-1\t23456789012\n1764500000100000\t-1\t80000\n"
    assert times_of(log) == [1.5, 80.0]
    assert times_of("") == []
