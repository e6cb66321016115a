"""What queries of alerts and dashboard may ask for: the service's metrics, and what Prometheus adds to them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import promql_parser

from headwayd.telemetry import metric_names
from headwayd.telemetry.metric_names import Kind

# What a scrape through a ServiceMonitor adds.
_TARGET = {"job", "instance", "namespace", "pod", "service", "container", "endpoint"}
_STATES = {"waiting", "leased", "delayed", "dead"}  # as the metric's text has them
_PARTS = ("expr", "lhs", "rhs", "vector_selector")


def series() -> dict[str, tuple[str, set[str]]]:
    """Kind and labels of every series: a histogram is three."""
    found: dict[str, tuple[str, set[str]]] = {}
    for metric in metric_names.ALL:
        name, labels = metric.name, set(metric.labels)
        if metric.kind is Kind.HISTOGRAM:
            found[f"{name}_bucket"] = ("counter", labels | {"le"} | _TARGET)
            found[f"{name}_sum"] = found[f"{name}_count"] = ("counter", labels | _TARGET)
        else:
            found[name] = (metric.kind.value, labels | _TARGET)
    return found


def labels_left(query: str) -> set[str] | None:
    """The labels of a query's result, None if it has no series. Fails unless it reads as PromQL and asks only for what
    there is: series, labels, and a rate of what is counted only."""
    return _check(promql_parser.parse(re.sub(r"\$__rate_interval", "5m", query)), query)


def _check(node: Any, query: str, within: str = "") -> set[str] | None:
    if isinstance(node, promql_parser.VectorSelector):
        return _check_selector(node, query, within)
    if isinstance(node, promql_parser.MatrixSelector):
        return _check(node.vector_selector, query, within)
    if isinstance(node, promql_parser.Call):
        kept = [_check(argument, query, node.func.name) for argument in node.args]
        left = next((labels for labels in kept if labels is not None), None)
        assert node.func.name != "histogram_quantile" or (left is not None and "le" in left), f"le is lost: {query}"
        return left - {"le"} if left and node.func.name == "histogram_quantile" else left
    if isinstance(node, promql_parser.AggregateExpr):
        left = _check(node.expr, query) or set()
        wanted = set(node.modifier.labels) if node.modifier else set()
        assert wanted <= left, f"no such label: {wanted - left} in {query}"
        return wanted
    if isinstance(node, promql_parser.BinaryExpr):
        sides = [_check(side, query) for side in (node.lhs, node.rhs)]
        matching = node.modifier.matching if node.modifier else None
        if all(side is not None for side in sides):
            on = set(matching.labels) if matching else sides[0]
            assert on == sides[0] == sides[1], f"the sides have other labels: {query}"
        return sides[0] if sides[0] is not None else sides[1]
    parts = [_check(getattr(node, part), query) for part in _PARTS if hasattr(node, part)]
    return parts[0] if parts else None


def _check_selector(selector: Any, query: str, within: str) -> set[str]:
    known = series()
    assert selector.name in known, f"no such metric: {selector.name} in {query}"
    kind, labels = known[selector.name]
    counts = within in {"rate", "increase"}
    assert counts == (kind == "counter"), f"{selector.name} is a {kind}: {query}"
    for matcher in selector.matchers.matchers:
        assert matcher.name in labels, f"no such label: {matcher.name} in {query}"
        assert matcher.name != "state" or matcher.value in _STATES, f"no such state: {query}"
    return labels


def matchers_in(query: str) -> list[tuple[str, set[str]]]:
    """Each selector of a query: the metric, and what its labels must be."""
    found: list[tuple[str, set[str]]] = []

    def look(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            assert node.name is not None
            found.append((node.name, {f"{each.name} {each.op} {each.value}" for each in node.matchers.matchers}))
        for part in (*(getattr(node, name, None) for name in _PARTS), *getattr(node, "args", ())):
            if part is not None:
                look(part)

    look(promql_parser.parse(query))
    return found


def texts_in(template: str) -> Iterator[str]:
    """The labels that a text of Grafana's or Prometheus's mentions."""
    yield from re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)", template)
