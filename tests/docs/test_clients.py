"""The table of clients says what their manifests do."""

from __future__ import annotations

import re

import pytest

from conformance.languages import LANGUAGES
from docs.blocks import ROOT

# Language → its manifest, and what there tells the least version that it needs.
MANIFESTS = {
    "go": ("go.mod", r"^go (\d+\.\d+)"),
    "java": ("pom.xml", r"<maven\.compiler\.release>(\d+)<"),
    "python": ("pyproject.toml", r'^requires-python = ">=(\d+\.\d+)"'),
    "rust": ("Cargo.toml", r'^rust-version = "(\d+\.\d+)'),
    "typescript": ("package.json", r'"node": ">=(\d+)'),
}
ROW = re.compile(r"^\| \[\w+\]\((?P<name>\w+)/README\.md\) \| [^|]+ \| \w+ (?P<least>[\d.]+) \|", re.MULTILINE)
ROWS = {row["name"]: row["least"] for row in ROW.finditer((ROOT / "clients/README.md").read_text())}


def test_every_client_has_a_row() -> None:
    assert ROWS.keys() == MANIFESTS.keys()
    assert LANGUAGES.keys() <= ROWS.keys()


@pytest.mark.parametrize("client", sorted(LANGUAGES))
def test_least_version_is_that_of_the_manifest(client: str) -> None:
    name, pattern = MANIFESTS[client]
    told = re.search(pattern, (ROOT / f"clients/{client}/{name}").read_text(), re.MULTILINE)
    assert told is not None
    assert told[1] == ROWS[client]
