"""What is generated for each client, one module per language, and for the service: `keda`. Found by being here.

Each has `KEPT`, the committed folder below the root (None if the client's own build generates), `missing()`, why its
code cannot be made here (None if it can), and `generate(into)`, which writes exactly what `KEPT` should hold into a
folder that is there and empty.
"""

import importlib
import pkgutil
from pathlib import Path
from typing import Protocol, cast


class Generating(Protocol):
    """One module of this package."""

    KEPT: Path | None

    def missing(self) -> str | None: ...
    def generate(self, into: Path) -> None: ...


def languages() -> dict[str, Generating]:
    """Every module by its name, in alphabetical order."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name: cast(Generating, importlib.import_module(f"generating.{name}")) for name in names}
