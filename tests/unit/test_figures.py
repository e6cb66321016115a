"""What tests measure is shown when the run ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
MEASURING = """
import pytest

@pytest.mark.parametrize("store", ["a", "b"])
def test_one(figure, store):
    figure("woken after", "3 ms")
    figure("in all", "1,000 Gets")
    assert store == "a"

def test_none():
    pass
"""


@pytest.mark.long
@pytest.mark.parametrize("workers", ["0", "2"])
def test_figures_stand_in_one_table_at_the_end_of_a_run_distributed_or_not(tmp_path: Path, workers: str) -> None:
    (tmp_path / "test_it.py").write_text(MEASURING)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "harness.figures", "-n", workers, str(tmp_path)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), "-c", os.devnull],
        env=env | {"PYTHONPATH": str(TESTS)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    table = done.stdout.partition("= figures =")[2].splitlines()[1:5]
    assert table == [
        "woken after  3 ms        test_one[a]",
        "in all       1,000 Gets  test_one[a]",
        "woken after  3 ms        test_one[b]",
        "in all       1,000 Gets  test_one[b]",
    ], done.stdout
