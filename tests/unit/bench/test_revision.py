"""Which code of Headway a table was measured with."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.peers import places
from bench.peers.revision import revision

AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes a file of a repository, in which there is one of each kind already."""
    monkeypatch.setattr(places, "ROOT", tmp_path)
    git("init", "--quiet")

    def change(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)

    for folder in ("service", "clients", "docs"):
        change(f"{folder}/file", "first")
    commit()
    return change


def git(*words: str) -> None:
    subprocess.run(["git", "-C", str(places.ROOT), *AUTHOR, *words], check=True)


def commit() -> None:
    git("add", "--all")
    git("commit", "--quiet", "--message", "a change")


@pytest.mark.parametrize("folder", ["service", "clients"])
def test_every_change_of_what_is_measured_makes_it_another(folder: str, changed: Callable[[str, str], None]) -> None:
    told = [revision()]
    for text in ("second", "third"):
        changed(f"{folder}/file", text)
        told.append(revision())
    commit()
    told.append(revision())
    assert all(told)
    assert len(set(told)) == 4
    assert ["changed" in one for one in told] == [False, True, True, False]


def test_tables_that_are_written_and_committed_do_not(changed: Callable[[str, str], None]) -> None:
    before = revision()
    changed("docs/file", "tables")
    assert revision() == before
    commit()
    assert revision() == before


def test_where_there_is_no_repository_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert revision() == ""
