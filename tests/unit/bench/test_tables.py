"""Tables of figures in Markdown: a section is replaced in place, and nothing else of the file is touched."""

from pathlib import Path

import pytest

from bench.tables import SETTINGS, Table, made_by, settings, spread, write


def table(cell: str) -> Table:
    one = Table("A title", ["what", "how much"], silent=True)
    one.add("this", cell)
    return one


def test_a_section_is_replaced_and_its_surroundings_stay(tmp_path: Path) -> None:
    path = tmp_path / "figures.md"
    path.write_text("before\n<!-- one -->\nold\n<!-- /one -->\nbetween\n<!-- two -->\nkept\n<!-- /two -->\nafter\n")
    write(path, "one", "make it", [table("5")])
    text = path.read_text()
    assert text.startswith("before\n<!-- one -->\n`make it`, ")
    assert "| this | 5 |" in text
    assert "old" not in text
    assert text.endswith("<!-- /one -->\nbetween\n<!-- two -->\nkept\n<!-- /two -->\nafter\n")


def test_a_section_that_is_not_there_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "figures.md"
    path.write_text("before\n")
    write(path, "one", "make it", [table("5")])
    write(path, "one", "make it", [table("6")])
    text = path.read_text()
    assert text.startswith("before\n\n<!-- one -->")
    assert text.count("<!-- one -->") == 1
    assert "| this | 6 |" in text
    assert "| this | 5 |" not in text


def test_a_table_without_rows_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "figures.md"
    write(path, "one", "make it", [Table("Nothing measured", ["what"]), table("5")])
    assert "Nothing measured" not in path.read_text()


def test_a_section_stays_if_nothing_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "figures.md"
    write(path, "one", "make it", [table("5")])
    before = path.read_text()
    write(path, "one", "make it", [Table("Nothing measured", ["what"])])
    write(path, "two", "make it", [])
    assert path.read_text() == before


def test_a_spread_tells_median_and_range_and_of_one_run_only_the_figure() -> None:
    assert spread([1_500.4, 900.0, 2_000.0]) == "1,500 (900–2,000)"
    assert spread([1.24]) == "1.2"


@pytest.mark.parametrize(
    ("words", "target", "module", "told"),
    [
        ([], "bench", "bench.one", "make bench"),
        ([], "", "bench.one", "cd tests && ../.venv/bin/python -m bench.one"),
        (["--runs", "3"], "bench", "bench.one", "cd tests && ../.venv/bin/python -m bench.one --runs 3"),
        (["--markdown", "here.md", "--runs", "3"], "bench", "", "make bench ARGS='--runs 3'"),
    ],
)
def test_a_table_tells_the_command_that_makes_it(
    monkeypatch: pytest.MonkeyPatch, words: list[str], target: str, module: str, told: str
) -> None:
    monkeypatch.delenv(SETTINGS, raising=False)
    monkeypatch.setattr("sys.argv", ["one", *words])
    assert made_by(target, module) == told


@pytest.mark.parametrize(
    ("words", "target", "told"),
    [
        ([], "bench", "BENCH_SETTINGS='HEADWAY_A=1 HEADWAY_B=2' make bench"),
        (["--runs", "3"], "bench", "BENCH_SETTINGS='HEADWAY_A=1 HEADWAY_B=2' make bench ARGS='--runs 3'"),
    ],
)
def test_the_command_has_the_settings_that_a_table_was_made_with(
    monkeypatch: pytest.MonkeyPatch, words: list[str], target: str, told: str
) -> None:
    monkeypatch.setenv(SETTINGS, "HEADWAY_A=1 HEADWAY_B=2")
    monkeypatch.setattr("sys.argv", ["one", *words])
    assert made_by(target) == told
    assert made_by("", "bench.one").startswith("cd tests && BENCH_SETTINGS='HEADWAY_A=1 HEADWAY_B=2' ../.venv")


def test_settings_of_services_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTINGS, "HEADWAY_ACCEPTORS=1 'HEADWAY_LISTEN=a b'")
    assert settings() == {"HEADWAY_ACCEPTORS": "1", "HEADWAY_LISTEN": "a b"}
    monkeypatch.delenv(SETTINGS)
    assert settings() == {}


@pytest.mark.parametrize("wrong", ["HEADWAY_ACCEPTORS", "ACCEPTORS=1", "HEADWAY_ACCEPTORS=1 2"])
def test_what_is_no_setting_is_refused(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv(SETTINGS, wrong)
    with pytest.raises(ValueError, match="is not HEADWAY_"):
        settings()
