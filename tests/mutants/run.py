"""Breaks the service on purpose, defect by defect, and shows that a named test notices: `make mutants`.

Each mutant of `mutants.table` is applied to a copy of the package `headwayd`, and its test runs against the copy: the
copy comes first on PYTHONPATH, which the test process and every service that it starts inherit. Before that comes the
control: all those tests against a copy without a defect, and `mutants/control.py`, which shows that tests and services
really run the copy (it notes who imports it). A mutant counts as caught only if its test ran and failed by itself: a
copy that cannot be imported, a script that the store cannot compile or that ends in an error, a test that could not be
set up are told as BROKEN.

Exit code 0 if the control passed and every mutant was caught, else 1. Names as arguments choose mutants.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from harness import StoreServer
from mutants.mutant import Mutant, MutantDoesNotFit
from mutants.table import MUTANTS

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "service" / "headwayd"
CONTROL = ("tests/mutants/control.py",)
AT_ONCE = 2
TEST_S, CONTROL_S = 150.0, 420.0
# What a script that ends in an error of Lua's looks like from the outside: no behaviour was tested then.
LUA_ERROR = "the store answered ERR"
_NOTE_WHO_IMPORTS = """
import os, pathlib
def note():
    with (pathlib.Path(__file__).parent / "imported_by").open("a") as file:
        file.write(f"{os.getpid()}\\n")
note()
os.register_at_fork(after_in_child=note)
"""


@dataclass(frozen=True)
class Outcome:
    """How one run of tests ended."""

    verdict: str  # passed, failed, or broken
    seconds: float
    output: str


def copy_package(folder: Path) -> Path:
    """A copy of the package that notes the processes that import it. Returns the folder for PYTHONPATH."""
    path = folder / "service"
    shutil.copytree(PACKAGE, path / "headwayd", ignore=shutil.ignore_patterns("__pycache__"))
    with (path / "headwayd" / "__init__.py").open("a") as file:
        file.write(_NOTE_WHO_IMPORTS)
    return path


def _environment(path: Path) -> dict[str, str]:
    first = os.pathsep.join((str(path), str(ROOT / "clients" / "python")))
    return os.environ | {"PYTHONPATH": first, "MUTANTS_COPY": str(path)}


async def _run(command: list[str], path: Path, cwd: Path, within_s: float) -> tuple[int | None, str]:
    """Exit code (None: it did not end in time, and was ended) and output of a program of the copy."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env=_environment(path),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(within_s):
            output, _ = await process.communicate()
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        return None, f"not done within {within_s:.0f} s"
    return process.returncode, output.decode(errors="replace")


def _verdict(code: int | None, report: Path, output: str) -> str:
    if code == 0:
        return "passed"
    if code != 1 or not report.exists() or LUA_ERROR in output:
        return "broken"
    failures = ElementTree.parse(report).getroot().iter("failure")
    return "failed" if any(True for _ in failures) else "broken"


async def run_tests(nodes: tuple[str, ...], path: Path, folder: Path, within_s: float = TEST_S) -> Outcome:
    """Runs tests against a copy, stopping at the first that fails."""
    began, report = time.monotonic(), folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--stores=valkey", "--tb=short", "-p", "no:cacheprovider"]
    code, output = await _run([*command, f"--junitxml={report}", *nodes], path, ROOT, within_s)
    return Outcome(_verdict(code, report, output), time.monotonic() - began, output)


async def is_sound(path: Path, store: StoreServer) -> str:
    """Empty if every module of the copy can be imported and the store compiles every script of it; else why not."""
    command = [sys.executable, "-m", "mutants.sound", store.url]
    code, output = await _run(command, path, ROOT / "tests", 60)
    return "" if code == 0 else output


async def control(store: StoreServer, mutants: list[Mutant]) -> bool:
    """Every named test passes on a copy without a defect, and the copy is what runs."""
    nodes = (*CONTROL, *dict.fromkeys(mutant.test for mutant in mutants))
    with tempfile.TemporaryDirectory(prefix="hw-mutant-") as name:
        path = copy_package(Path(name))
        why = await is_sound(path, store)
        done = Outcome("broken", 0.0, why) if why else await run_tests(nodes, path, Path(name), CONTROL_S)
    print(f"control: {len(nodes)} tests without a defect {done.verdict} in {done.seconds:.0f} s", flush=True)
    if done.verdict != "passed":
        print(done.output)
    return done.verdict == "passed"


async def attempt(mutant: Mutant, store: StoreServer, places: asyncio.Semaphore) -> bool:
    """True if the mutant was caught."""
    async with places:
        with tempfile.TemporaryDirectory(prefix="hw-mutant-") as name:
            path = copy_package(Path(name))
            mutant.apply(path)
            why = await is_sound(path, store)
            done = Outcome("broken", 0.0, why) if why else await run_tests((mutant.test,), path, Path(name))
    said = {"passed": "SURVIVED", "failed": "caught", "broken": "BROKEN"}[done.verdict]
    where, _, test = mutant.test.rpartition("::")
    print(f"{said:9} {done.seconds:5.1f} s  {mutant.name:40} {Path(where).name}::{test}", flush=True)
    if done.verdict == "broken":
        print(done.output)
    return said == "caught"


async def main(names: list[str]) -> int:
    """Runs the control, then the mutants, two at a time."""
    unknown = set(names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        print(f"no such mutant: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 1
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    misfits = [text for mutant in chosen if (text := mutant.misfit(PACKAGE.parent))]
    if misfits:
        print("\n".join(misfits), file=sys.stderr)
        return 1
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:
        store = StoreServer("valkey", Path(folder))
        store.start()
        try:
            if not await control(store, chosen):
                return 1
            places = asyncio.Semaphore(AT_ONCE)
            caught = await asyncio.gather(*(attempt(mutant, store, places) for mutant in chosen))
        finally:
            store.stop()
    print(f"{sum(caught)} of {len(chosen)} mutants caught, {time.monotonic() - began:.0f} s")
    return 0 if all(caught) else 1


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main(sys.argv[1:])))
    except MutantDoesNotFit as error:
        sys.exit(str(error))
