"""What is promised of estimates holds on simulated traces: seeded, so the same on every run. `make bench-eta` plays
longer traces and shows each by itself."""

from collections.abc import Sequence

import pytest

from eta.measure import NAMES, TEST_SEEDS, Score, score, together
from eta.traces import TRACES
from harness.figures import Figure

JOBS = 2_000


@pytest.fixture(scope="module")
def scores() -> Sequence[Score]:
    return [score(make, TEST_SEEDS[:2], JOBS) for make in TRACES]


def test_every_trace_shows_enough_estimates_to_judge(scores: Sequence[Score]) -> None:
    assert {each.name: each.shown for each in scores if each.shown < 300} == {}
    assert {each.name: each.unknown for each in scores if each.unknown > each.shown / 100} == {}


def test_median_error_is_thirty_percent_smaller_than_that_of_gradio_and_parq(
    scores: Sequence[Score], figure: Figure
) -> None:
    result = together(scores)
    for name, error in zip(NAMES, result.errors, strict=True):
        figure(f"median error of estimated waits, {name}", f"{100 * error:.1f} %")
    assert result.gain >= 0.30


def test_nine_of_ten_waits_are_no_longer_than_p90(scores: Sequence[Score], figure: Figure) -> None:
    coverage = together(scores).coverage
    figure("waits no longer than p90", f"{100 * coverage:.1f} %")
    assert 0.85 <= coverage <= 0.95
    assert {each.name: each.coverage() for each in scores if not 0.75 <= each.coverage() <= 0.99} == {}


def test_estimates_rarely_jump_upward(scores: Sequence[Score], figure: Figure) -> None:
    share = together(scores).jump_shares[0]
    figure("estimates more than 20 % above the one before", f"{100 * share:.2f} %")
    assert share < 0.02
