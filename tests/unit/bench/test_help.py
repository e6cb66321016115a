"""Who asks a benchmark what it does is told so, and starts no load of minutes."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness import access

BENCH = access.ROOT / "tests" / "bench"
_OF_OTHERS = {"abusers", "echo", "http2_load"}  # processes that a benchmark starts
NAMES = sorted({path.stem for path in BENCH.glob("*.py") if "__main__" in path.read_text()} - _OF_OTHERS)


@pytest.mark.long
@pytest.mark.parametrize("argument", ["--help", "--no-such-argument"])
def test_each_tells_of_itself_and_refuses_what_it_does_not_know(argument: str, tmp_path: Path) -> None:
    logs = {name: (tmp_path / name).open("w+") for name in NAMES}
    started = {
        name: subprocess.Popen(
            [sys.executable, "-m", f"bench.{name}", argument],
            cwd=BENCH.parent,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        for name, log in logs.items()
    }
    try:
        codes = {name: process.wait(60) for name, process in started.items()}
    finally:
        for process in started.values():
            process.kill()
            process.wait()
    told = {name: (log.seek(0), log.read())[1] for name, log in logs.items()}
    assert len(NAMES) >= 17
    assert codes == dict.fromkeys(NAMES, 0 if argument == "--help" else 2)
    assert [name for name, text in told.items() if not text.startswith("usage: ")] == []
