"""The languages: what the driver.toml of each says, whether its toolchain is here, and its one build."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DRIVERS = Path(__file__).parent / "drivers"
# Everything that is built stands here and stays, so that the next run's build has little to do.
BUILDS = ROOT / "build/conformance"
CORE = "-core"
BUILD_S = 600
_NEEDS_S = 60
_TAIL = 4000


@dataclass(frozen=True, slots=True)
class Example:
    """A program of a README: its file, how to run it, a regular expression of what it prints, and on which stage; or
    which other test runs it."""

    file: Path
    run: tuple[str, ...] = ()
    output: str = ""
    stage: str = "own"
    run_by: str = ""

    @property
    def name(self) -> str:
        return self.file.relative_to(ROOT / "clients").as_posix().replace("/", "-")


@dataclass(frozen=True, slots=True)
class Way:
    """Another way for the same client to call: its driver is called `<language>-<name>`."""

    name: str
    run: tuple[str, ...]
    part: tuple[int, int]  # which of how many parts of the scenarios it plays


@dataclass(frozen=True, slots=True)
class Language:
    """One driver.toml. Commands are made with `command`."""

    name: str
    needs: tuple[tuple[str, ...], ...]
    build: tuple[tuple[str, ...], ...]
    cwd: Path
    run: tuple[str, ...]
    run_core: tuple[str, ...]  # the same by the counted layer alone, if the client has more; else nothing
    over_http: tuple[Way, ...]  # those that call the HTTP port
    test: tuple[tuple[str, ...], ...]
    test_cwd: Path
    examples: tuple[Example, ...]
    layer: tuple[str, ...]  # what the hand-written layer consists of, as patterns of paths
    blocks_are_run_by: str  # the test that runs the README's blocks, if it is not that of the examples
    out: Path = field(compare=False)

    @property
    def drivers(self) -> Mapping[str, tuple[str, ...]]:
        """The commands of its drivers, by name: "python", "python-core", "typescript-web"."""
        core = {f"{self.name}{CORE}": self.run_core} if self.run_core else {}
        return {self.name: self.run} | core | {name: way.run for name, way in self.ways.items()}

    @property
    def ways(self) -> Mapping[str, Way]:
        """Its ways over the HTTP port, by the names of their drivers."""
        return {f"{self.name}-{way.name}": way for way in self.over_http}

    def command(self, words: Sequence[str]) -> list[str]:
        """The words with their placeholders filled: {out} is the build's folder, {python} this interpreter."""
        return [word.replace("{out}", str(self.out)).replace("{python}", sys.executable) for word in words]


def read(path: Path) -> Language:
    """One driver.toml."""
    told: dict[str, Any] = tomllib.loads(path.read_text())
    return Language(
        name=told["language"],
        needs=tuple(map(tuple, told.get("needs", []))),
        build=tuple(map(tuple, told.get("build", []))),
        cwd=ROOT / told.get("cwd", "."),
        run=tuple(told["run"]),
        run_core=tuple(told.get("run_core", [])),
        over_http=tuple(
            Way(each["name"], tuple(each["run"]), tuple(each.get("part", (1, 1)))) for each in told.get("over_http", [])
        ),
        test=tuple(map(tuple, told.get("test", []))),
        test_cwd=ROOT / told.get("test_cwd", "."),
        examples=tuple(
            Example(
                ROOT / each["file"],
                tuple(each.get("run", [])),
                each.get("output", ""),
                each.get("stage", "own"),
                each.get("run_by", ""),
            )
            for each in told.get("examples", [])
        ),
        layer=tuple(told.get("layer", [])),
        blocks_are_run_by=told.get("blocks_are_run_by", ""),
        out=BUILDS / told["language"],
    )


Ready = Callable[[str], Language]  # of a name: built, or the test is skipped or fails
LANGUAGES = {language.name: language for language in map(read, sorted(DRIVERS.glob("*/driver.toml")))}


def language_of(driver: str) -> str:
    """The name of the language whose driver has this name; none has a dash in it."""
    return driver.partition("-")[0]


@cache
def missing(language: Language) -> str:
    """Which command that the language needs does not work here; "" if all do."""
    for words in language.needs:
        command = language.command(words)
        if shutil.which(command[0]) is None:
            return f"{command[0]} is not on the path"
        done = subprocess.run(command, capture_output=True, check=False, timeout=_NEEDS_S, cwd=ROOT)
        if done.returncode:
            return f"`{' '.join(command)}` fails: {done.stderr.decode(errors='replace')[-300:].strip()}"
    return ""


def skip_without_toolchain(language: Language) -> None:
    """Skips the test if something is missing here; fails it under CI."""
    reason = missing(language)
    if reason and os.environ.get("CI") == "true":
        pytest.fail(f"{language.name}: {reason}")
    if reason:
        pytest.skip(f"{language.name}: {reason}")


def run(command: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """What a command of a language prints. Raises AssertionError with the end of its output if it fails."""
    variables = None if env is None else os.environ | dict(env)
    done = subprocess.run(
        command,
        cwd=cwd,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=BUILD_S,
    )
    printed = done.stdout.decode(errors="replace")
    assert done.returncode == 0, f"`{' '.join(command)}` ended with {done.returncode}:\n{printed[-_TAIL:]}"
    return printed


@cache
def run_id() -> str:
    """What all processes of one run of the tests have in common."""
    names = ("CONFORMANCE_RUN", "PYTEST_XDIST_TESTRUNUID")
    return next(filter(None, map(os.environ.get, names)), uuid.uuid4().hex)


def build_once(language: Language, run_id: str) -> str:
    """Builds driver and examples, unless another process of the same run has done so; why it failed, or ""."""
    language.out.mkdir(parents=True, exist_ok=True)
    # One build at a time, of whichever language: each uses all cores by itself.
    with (BUILDS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = language.out / "built-by-run"
        seen, _, failure = stamp.read_text().partition("\n") if stamp.exists() else ("", "", "")
        if seen != run_id:
            failure = _build(language)
            stamp.write_text(f"{run_id}\n{failure}")
    return failure


def _build(language: Language) -> str:
    try:
        for words in language.build:
            run(language.command(words), cwd=language.cwd)
    except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return ""
