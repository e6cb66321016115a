"""The documents agree with the code: links lead somewhere, tables and examples are the code's own."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from bench.peers.summary import summary
from bench.tables import anchor
from docs.blocks import ROOT
from headway.v1 import queue_service_pb2
from headwayd.domain.errors import Reason
from headwayd.domain.names import PRESSURE_SUFFIXES, refusal_of
from headwayd.rpc.admin_servicer import AdminServicer
from headwayd.rpc.queue_servicer import QueueServicer
from headwayd.rpc.server import ADMIN_SERVICE, QUEUE_SERVICE
from headwayd.rpc.status import STATUS_CODES
from headwayd.store import frames, keys
from headwayd.telemetry import metric_names

PROTOCOL = (ROOT / "docs/protocol.md").read_text()
REASONS = (ROOT / "proto/headway/v1/error_reason.proto").read_text()
STORAGE = (ROOT / "docs/storage.md").read_text()
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        ROOT / "helm/headway/README.md",
        *(ROOT / "clients").glob("*.md"),
        *(ROOT / "clients").glob("*/README.md"),
    ]
)
_LINK = re.compile(r"(?<!`)\]\((?!https?://)(?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")
_RULE = re.compile(r"\*\*(P-[A-Z]+-\d+)\*\*")
_REASON_ROW = re.compile(r"^\| ([A-Z_]+) \| ([A-Z_]+) \|", re.MULTILINE)


def _anchors(markdown: str) -> set[str]:
    return {anchor(heading) for heading in re.findall(r"^#+ (.+)$", markdown, re.MULTILINE)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for link in _LINK.finditer(document.read_text()):
        target = document.parent / link["path"] if link["path"] else document
        assert target.exists(), f"{document.name}: {link[0]}"
        if link["anchor"]:
            assert link["anchor"] in _anchors(target.read_text()), f"{document.name}: {link[0]}"


def test_the_table_of_metrics_is_the_codes_own_and_names_none_besides() -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    assert metric_names.markdown() in text
    known = {f"{metric.name}{part}" for metric in metric_names.ALL for part in ("", "_bucket", "_sum", "_count")}
    assert set(re.findall(r"headway_[a-z_]+", text)) <= known


def test_the_peers_at_a_glance_are_what_their_tables_tell() -> None:
    """Written by `cd tests && ../.venv/bin/python -m bench.peers.summary ../docs/benchmarks.md`."""
    text = (ROOT / "docs/benchmarks.md").read_text()
    assert summary(text) in text


def test_rule_ids_are_unique() -> None:
    rules = _RULE.findall(PROTOCOL)
    assert len(rules) > 80
    assert len(set(rules)) == len(rules)


def test_the_table_of_errors_is_the_codes_own() -> None:
    table = dict(_REASON_ROW.findall(PROTOCOL))
    assert table == {name: STATUS_CODES[Reason[name]].name for name in table}
    not_sent = re.search(r"\n\n([A-Z_,\sand]+?) belong to calls", PROTOCOL)
    assert not_sent
    others = set(re.findall(r"[A-Z_]{4,}", not_sent[1]))
    assert set(table) | others == {reason.name for reason in Reason} - {"UNSPECIFIED"}
    assert not set(table) & others


def test_every_call_is_served_and_told() -> None:
    for service, servicer in ((QUEUE_SERVICE, QueueServicer), (ADMIN_SERVICE, AdminServicer)):
        for method in service.methods:
            assert method.name in vars(servicer)
            assert re.search(rf"\b{method.name}\b", PROTOCOL), method.name


def test_the_names_that_are_refused_are_the_ones_told() -> None:
    for suffix in ("bound", "producer", "consumer", "producer_free", "consumer_free", "not_full", "closed", "stats"):
        assert f"`q:{suffix}`" in PROTOCOL
        assert refusal_of(f"q:{suffix}")
    assert sum("produced" in suffix or "consumed" in suffix for suffix in PRESSURE_SUFFIXES) == 12
    for name in ("q:produced_messages", "q:stats:produced_messages", "q:stats_produced_messages", "q:x", "q:x:y"):
        assert refusal_of(name)
    for name in ("a:b", "x", "x:a", ":closed"):
        assert refusal_of(name) is None
        assert f"`{name}`" in PROTOCOL


def test_every_key_is_told() -> None:
    for suffix in (keys.PRESSURE | keys.OWN).values():
        assert f"`P:q{suffix}`" in STORAGE, suffix
    told = set(re.findall(r"^\| `P:q([^`]*)` \|", STORAGE, re.MULTILINE))
    assert told == set((keys.PRESSURE | keys.OWN).values())


def test_the_example_of_a_frame_is_one() -> None:
    line = next(line for line in STORAGE.splitlines() if line.startswith("f5 48 57 01"))
    element = bytes.fromhex(line)
    assert len(element) == 35
    headers = queue_service_pb2.PutRequest().messages.add(headers={"k": "v"}).SerializeToString()
    assert frames.read(element) == frames.Element(b"hi", "a", headers, 1_700_000_000_000)


def test_the_changelog_knows_the_versions() -> None:
    versions = {
        tomllib.loads((ROOT / path).read_text())["project"]["version"]
        for path in ("pyproject.toml", "clients/python/pyproject.toml")
    }
    assert len(versions) == 1
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert "## [Unreleased]" in changelog or f"## [{versions.pop()}]" in changelog


def test_the_schema_promises_the_metadata_of_each_reason_that_the_protocol_does() -> None:
    in_schema = {
        reason: set(re.findall(r"`([a-z]+)`", comment.partition("Metadata:")[2]))
        for comment, reason in re.findall(r"((?:^  // .*\n)+)  ERROR_REASON_([A-Z_]+) = ", REASONS, re.MULTILINE)
    }
    for reason, metadata in re.findall(r"^\| ([A-Z_]+) \| [A-Z_]+ \| [^|]* \| ([^|]*) \|", PROTOCOL, re.MULTILINE):
        assert in_schema[reason] == set(re.findall(r"`([a-z]+)`", metadata)), reason


def test_the_schema_knows_every_cause_of_an_unavailable_store() -> None:
    [sentence] = re.findall(r"`cause` of STORE_UNAVAILABLE is (.*?); of OUTCOME_UNKNOWN", PROTOCOL, re.DOTALL)
    [causes] = re.findall(r"`cause` \(one word: ([^)]*)\)", REASONS)
    assert re.findall(r"\b[A-Z]{4,}\b", causes) == re.findall(r"\b[A-Z]{4,}\b", sentence)


def _comments_of_calls() -> dict[str, str]:
    schema = "".join((ROOT / f"proto/headway/v1/{name}_service.proto").read_text() for name in ("queue", "admin"))
    found = re.findall(r"((?:^  // ?.*\n)+)  rpc ([A-Za-z]+)\(", schema, re.MULTILINE)
    return {name: comment for comment, name in found}


def test_each_call_on_a_queue_says_what_it_answers_where_there_is_none() -> None:
    comments = _comments_of_calls()
    for method in (*QUEUE_SERVICE.methods, *ADMIN_SERVICE.methods):
        if "queue" in method.input_type.fields_by_name and method.name != "Create":
            assert re.search(r"QUEUE_NOT_FOUND|\bGONE\b", comments[method.name]), method.name


def test_each_call_names_in_the_schema_the_errors_that_the_protocol_does() -> None:
    comments = _comments_of_calls()
    sections = re.findall(r"^### ([A-Z][a-z]+)\n(.*?)(?=^##|\Z)", PROTOCOL, re.MULTILINE | re.DOTALL)
    told = re.compile(r"^Errors: ([^.]*)\.", re.MULTILINE)
    errors = {name: match[1] for name, text in sections if (match := told.search(text))}
    errors["Close"] = "QUEUE_DELETED"  # P-CLOSE-4
    errors["Purge"] = "QUEUE_DELETED"  # P-PURGE-3
    errors["WatchPosition"] = "PLACE_LOST"  # P-STAND-6
    assert {"Put", "Get", "Peek", "Consume"} <= set(errors)
    for name, reasons in errors.items():
        for reason in re.findall(r"[A-Z]{4,}(?:_[A-Z]+)+", reasons):
            assert reason in comments[name], f"{name}: {reason}"
