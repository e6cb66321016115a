"""Peers at a glance: which of the tables that a document has counts for each, and what is made of them."""

from pathlib import Path

import pytest

from bench.peers.summary import SECTION, Beside, Shape, compared, main, summary

FIGURES = "{put} (1–9) | 2,000 (1–9) | 30.0 (1–9)"


def section(name: str, day: str, *tables: str, options: str = "--runs 5") -> str:
    command = f"make bench-peers ARGS='{options} --peers '\"'\"'Headway, Go'\"'\"''"
    body = "\n".join(tables)
    return f"<!-- {name} -->\n`{command}`, {day}: 2 cores (Any), load 1.0 at the end.\n\n{body}<!-- /{name} -->\n"


def table(*rows: str, title: str = "everysec, 256 B, 1 client") -> str:
    head = "| peer | messages | put/s | get + ack/s | end to end/s | each exactly once |\n|---|---|---|---|---|---|\n"
    return f"#### {title}\n\nMedian of 5 runs.\n\n{head}" + "".join(rows)


def row(peer: str, put: str, messages: str = "200,000", verdict: str = "in 5 of 5 runs") -> str:
    return f"| {peer} | {messages} | {FIGURES.format(put=put)} | {verdict} |\n"


OURS = row("Headway, streams", "1,200") + row("Headway, calls", "1,000") + row("Headway, Go", "1,500")
SHAPE = Shape("everysec", 256, 1)


def test_a_peer_is_beside_the_better_mode_of_headway_in_the_same_table() -> None:
    text = section("bench-peers", "2026-01-01", table(OURS, row("RQ", "400")), table(row("Headway, calls", "9,000")))
    assert compared(text) == {"RQ": {SHAPE: Beside(200_000, "2026-01-01", (3.0, 1.0, 1.0))}}


def test_go_is_compared_with_go_and_others_with_python() -> None:
    peers = row("beanstalkd", "600") + row("beanstalkd, Go", "600") + row("BullMQ", "400")
    found = compared(section("bench-peers", "2026-01-01", table(OURS, peers)))
    assert {peer: beside[SHAPE].ratios[0] for peer, beside in found.items()} == {
        "beanstalkd": 2.0,
        "beanstalkd, Go": 2.5,
        "BullMQ": 3.0,
    }
    ours_by_python_only = table(row("Headway, streams", "1,200"), peers)
    assert set(compared(section("bench-peers", "2026-01-01", ours_by_python_only))) == {"beanstalkd", "BullMQ"}


def test_more_messages_count_more_than_a_later_day_and_a_later_day_more_than_an_earlier() -> None:
    few = section("bench-peers-few", "2026-01-03", table(OURS, row("RQ", "100", messages="900–200,000")))
    old = section("bench-peers-old", "2026-01-01", table(OURS, row("RQ", "200")))
    new = section("bench-peers-new", "2026-01-02", table(OURS, row("RQ", "300")))
    for text in (few + old + new, new + old + few):
        assert compared(text)["RQ"][SHAPE] == Beside(200_000, "2026-01-02", (4.0, 1.0, 1.0))
    assert compared(few)["RQ"][SHAPE].messages == 900


@pytest.mark.parametrize(
    "left_out",
    [
        section("bench-peers", "2026-01-01", table(OURS, row("RQ", "400")), options="--batch 500"),
        section("bench-peers", "2026-01-01", table(OURS, row("RQ", "400")), options="--unconfirmed 1000 4000"),
        section("bench-peers", "2026-01-01", table(OURS, row("RQ", "400", verdict="**1 of 5 runs: 1 missing**"))),
        section("bench-peers", "2026-01-01", table(OURS, row("RQ", "400", verdict="in 4 of 5 runs"))),
        section(
            "bench-peers",
            "2026-01-01",
            table(OURS, row("RQ", "400", verdict="**1 of 5 runs: 1 missing, 2 more than once**")),
        ),
        section(
            "bench-peers",
            "2026-01-01",
            table(row("Headway, calls", "9", verdict="**1 of 5 runs: 1 more than once**"), row("RQ", "4")),
        ),
        section("bench-peers", "2026-01-01", table(OURS, "| RQ | – | – | – | – | not measured |\n")),
        section(
            "bench-peers", "2026-01-01", table(OURS, "| RQ | 9 | given up | 1 (1–1) | 1 (1–1) | in 5 of 5 runs |\n")
        ),
        section("bench-peers", "2026-01-01", table(row("RQ", "400"))),
        section("bench-peers", "2026-01-01", table(OURS, row("RQ", "400"), title="Left out")),
        section("bench-others", "2026-01-01", table(OURS, row("RQ", "400"))),
    ],
)
def test_what_does_not_count(left_out: str) -> None:
    assert compared(left_out) == {}


def test_the_lines_are_in_the_catalogues_order_and_tell_from_the_least_to_the_most() -> None:
    text = section(
        "bench-peers",
        "2026-01-01",
        table(OURS, row("RQ", "1.0", messages="2,000"), row("SAQ", "400")),
        table(OURS, row("RQ", "60", messages="900–1,000"), title="everysec, 1024 B, 50 clients"),
    ) + section("bench-peers-long", "2026-02-01", table(OURS, row("SAQ", "100"), title="always, 256 B, 1 client"))
    everysec, always = summary(text).split("\n\n### ")
    assert everysec.splitlines()[-2:] == [
        "| SAQ (1 of 4) | 200,000 | 3.00 | 1.00 | 1.00 | 2026-01-01 |",
        "| RQ (2 of 4) | 900–2,000 | 20.0–1,200 | 1.00 | 1.00 | 2026-01-01 |",
    ]
    assert always.splitlines()[-1] == "| SAQ (1 of 4) | 200,000 | 12.0 | 1.00 | 1.00 | 2026-02-01 |"


def test_each_name_leads_to_the_heading_that_its_tables_stand_under() -> None:
    text = "# All\n\n## Old ones\n\n" + section("bench-peers-few", "2026-01-01", table(OURS, row("RQ", "9", "900")))
    text += "\n### RQ, each on disk\n\n" + section("bench-peers", "2026-01-01", table(OURS, row("RQ", "400")))
    line = "| [RQ](#rq-each-on-disk) (1 of 4) | 200,000 | 3.00 | 1.00 | 1.00 | 2026-01-01 |"
    assert line in summary(text).splitlines()


@pytest.mark.parametrize("fault", ["2 more than once", "2 more than once; 1 more than once"])
def test_who_did_some_more_than_once_counts_and_is_told_to_have(fault: str) -> None:
    text = section(
        "bench-peers",
        "2026-01-01",
        table(OURS, row("SAQ", "400", verdict=f"**1 of 5 runs: {fault}**")),
        table(OURS, row("SAQ", "300"), title="everysec, 1024 B, 50 clients"),
    )
    line = "| SAQ (2 of 4, some more than once in 1 of 2) | 200,000 | 3.00–4.00 | 1.00 | 1.00 | 2026-01-01 |"
    assert line in summary(text).splitlines()


def test_it_is_written_into_its_place_and_changes_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "figures.md"
    rest = section("bench-peers", "2026-01-01", table(OURS, row("RQ", "400"))) + "after\n"
    path.write_text(f"before\n<!-- {SECTION} -->\nold\n<!-- /{SECTION} -->\n{rest}")
    monkeypatch.setattr("sys.argv", ["summary", str(path)])
    for _ in range(2):
        main()
        assert path.read_text() == f"before\n<!-- {SECTION} -->\n{summary(rest)}<!-- /{SECTION} -->\n{rest}"
