"""The report of a run of tests says how those failed that a second try made good."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
FAILS_ONCE = """
from pathlib import Path

def test_that_fails_once():
    before = Path("before")
    is_first = not before.exists()
    before.touch()
    assert not is_first, "this is why"
"""


def test_why_a_test_was_tried_again_is_told(tmp_path: Path) -> None:
    (tmp_path / "test_once.py").write_text(FAILS_ONCE)
    options = ["-p", "harness.second_tries", "-p", "no:cacheprovider", "--reruns", "1", "-n", "1", "test_once.py"]
    command = [sys.executable, "-m", "pytest", *options]
    env = os.environ | {"PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    assert "first try of test_once.py::test_that_fails_once" in done.stdout
    assert "AssertionError: this is why" in done.stdout
