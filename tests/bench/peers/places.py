"""Where `make bench-peers-setup` puts what the peers need, outside the project's own environment."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
TESTS = ROOT / "tests"
FOLDER = ROOT / ".bench-peers"
PROGRAMS = FOLDER / "bin"  # built from Go modules
NODE = FOLDER / "node"
GO_DRIVERS = HERE / "drivers" / "in_go"  # one module; a program for each folder with a main
PYTHONS = {  # environment → its requirements; arq wants an older redis-py than the others
    "peers": HERE / "requirements.txt",
    "arq": HERE / "requirements-arq.txt",
}


class Missing(Exception):
    """Something is not installed, and so this peer is left out; says what."""


def python_of(environment: str) -> Path:
    """The interpreter of a driver; `project` is the one that runs this."""
    if environment == "project":
        return Path(sys.executable)
    found = FOLDER / environment / "bin" / "python"
    if not found.exists():
        raise Missing(f"no environment {environment}: make bench-peers-setup")
    return found


def program(name: str, *folders: str) -> Path:
    """A program that was built here, or is on the path, or in one of these folders."""
    for found in (PROGRAMS / name, shutil.which(name), *(Path(folder) / name for folder in folders)):
        if found is not None and Path(found).exists():
            return Path(found)
    raise Missing(f"{name} is not installed: make bench-peers-setup")
