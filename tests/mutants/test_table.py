"""The table of mutants fits the code as it is: every defect can still be made, and its test is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mutants.mutant import Mutant
from mutants.table import MUTANTS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_still_fits_the_code(mutant: Mutant) -> None:
    assert not mutant.misfit(ROOT / "service"), mutant.misfit(ROOT / "service")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_test_of_a_mutant_exists(mutant: Mutant) -> None:
    path, _, name = mutant.test.partition("::")
    source = (ROOT / path).read_text()
    assert re.search(rf"^(async )?def {name.partition('[')[0]}\(", source, re.MULTILINE), (
        f"{mutant.name}: {path} has no test {name}. Name the one that catches the defect now in tests/mutants/defects."
    )


def test_names_are_unique_and_there_are_enough() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names) >= 16
