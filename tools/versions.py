"""Checks that service and clients carry one version: that of pyproject.toml.

A client that is not here is not looked at: its folder makes the difference.
"""

import json
import re
import sys
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_MAVEN = "{http://maven.apache.org/POM/4.0.0}version"
_GO = re.compile(r'^const Version = "([^"]+)"$', re.MULTILINE)


def _of_project(path: Path) -> str:
    return str(tomllib.loads(path.read_text())["project"]["version"])


def _of_crate(path: Path) -> str:
    return str(tomllib.loads(path.read_text())["package"]["version"])


def _of_package(path: Path) -> str:
    return str(json.loads(path.read_text())["version"])


def _of_pom(path: Path) -> str:
    return str(ET.parse(path).getroot().findtext(_MAVEN))  # noqa: S314 - our own file


def _of_module(path: Path) -> str:
    # A Go module has its version from a tag; what its client says of itself is a constant of the package.
    found = [match[1] for file in sorted(path.parent.glob("*.go")) for match in _GO.finditer(file.read_text())]
    return " and ".join(found) or "not told as `const Version`"


CARRIERS: dict[str, Callable[[Path], str]] = {
    "clients/python/pyproject.toml": _of_project,
    "clients/go/go.mod": _of_module,
    "clients/typescript/package.json": _of_package,
    "clients/java/pom.xml": _of_pom,
    "clients/rust/Cargo.toml": _of_crate,
}


def main() -> None:
    """Prints every difference and exits 1 if there is one."""
    version = _of_project(ROOT / "pyproject.toml")
    problems = []
    for name, read in CARRIERS.items():
        path = ROOT / name
        if not path.parent.exists():
            continue
        found = read(path) if path.exists() else "missing"
        if found != version:
            problems.append(f"{name}: its version is {found}, pyproject.toml says {version}")
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
