"""The README does what it says: its blocks marked `run` are executed in order against a live service."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from docs.blocks import ROOT, Block, blocks_of, prints
from harness import ServiceProcess, StoreServer

README = (ROOT / "README.md").read_text()
BLOCKS = blocks_of(README)
_BLOCK_S = 60
# What the README calls a server of one's own.
_HOST, _PORT = "127.0.0.1", "6379"


def _run(block: Block, environment: dict[str, str], port: int) -> str:
    text = block.text.replace(f"port={_PORT}", f"port={port}")
    command = ["bash", "-euo", "pipefail", "-c", text] if "sh" in block.words else [sys.executable, "-c", text]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_BLOCK_S,
        check=False,
    )
    assert done.returncode == 0, f"README.md:{block.line} ended with {done.returncode}\n{done.stdout}"
    return done.stdout


@pytest.fixture
def pressure_folder(pytestconfig: pytest.Config) -> Path:
    """Where Python finds the stock pressure client; skips, or fails under CI, if it cannot be installed."""
    from interop import clients

    try:
        clients.load("pressure-0.5", pytestconfig)
    except clients.NotInstallable as error:
        clients.skip_or_fail(str(error))
    found = sys.modules["pressure"].__file__
    assert found is not None
    return Path(found).parents[1]


def test_every_block_marked_run_does_what_the_readme_says(
    store_server: StoreServer,
    fresh_store_server: StoreServer,
    make_service: Callable[..., ServiceProcess],
    pressure_folder: Path,
) -> None:
    service = make_service(HEADWAY_REDIS_URL=fresh_store_server.url)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWAY_", "PYTHON"))}
    environment |= {
        "HEADWAY_ADDRESS": service.address,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(pressure_folder),
        "PYTHONWARNINGS": "ignore",  # the stock client compares a number with `is`
    }
    executed = [block for block in BLOCKS if block.is_run]
    assert len(executed) >= 6
    for block in executed:
        printed = _run(block, environment, fresh_store_server.port)
        if block.printed is not None:
            assert prints(block.printed, printed), f"README.md:{block.line} printed\n{printed}"


def test_every_other_command_of_the_readme_is_a_make_target() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for block in BLOCKS:
        if "sh" in block.words and not block.is_run:
            for line in block.text.splitlines():
                program, target, *_ = line.split()
                assert program == "make", f"README.md:{block.line}: {line}"
                assert target in targets


def test_the_pressure_part_names_one_server() -> None:
    assert f"redis://{_HOST}:{_PORT}/0" in README
    assert f'host="{_HOST}", port={_PORT}' in README


def test_output_is_compared_line_by_line() -> None:
    assert prints("ticket …\ndone\n", "ticket 7  \ndone\n")
    assert not prints("ticket …\ndone\n", "ticket 7\n")
    assert not prints("done\n", "undone\n")
