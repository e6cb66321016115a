"""Who asks a benchmark what it does is told so, and starts no load of minutes."""

import sys
from pathlib import Path

import pytest

from harness import access, processes

BENCH = access.ROOT / "tests" / "bench"
WITHIN_S = 60.0
_OF_OTHERS = {"abusers", "echo", "http2_load"}  # processes that a benchmark starts
NAMES = sorted({path.stem for path in BENCH.glob("*.py") if "__main__" in path.read_text()} - _OF_OTHERS)


@pytest.mark.long
@pytest.mark.parametrize("argument", ["--help", "--no-such-argument"])
def test_each_tells_of_itself_and_refuses_what_it_does_not_know(argument: str, tmp_path: Path) -> None:
    started = {
        name: processes.spawn([sys.executable, "-m", f"bench.{name}", argument], log=tmp_path / name, cwd=BENCH.parent)
        for name in NAMES
    }
    try:
        codes = {name: process.wait(WITHIN_S) for name, process in started.items()}
    finally:
        for process in started.values():
            processes.stop(process)
    assert len(NAMES) >= 17
    assert codes == dict.fromkeys(NAMES, 0 if argument == "--help" else 2)
    assert [name for name in NAMES if not (tmp_path / name).read_text().startswith("usage: ")] == []
