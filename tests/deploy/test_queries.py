"""Alerts and dashboard ask Prometheus for what there is, and say what they show."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from promql_parser import MatchOp

from deploy.charts import CHART, helm, of_kind, rendered, the, values_of
from deploy.queries import labels_left, matchers_in, texts_in
from headwayd.domain.errors import DuplicateMessage
from headwayd.engine.counting.counts import DEFECT, OTHERS, Counts
from headwayd.telemetry import metric_names

RULES = yaml.safe_load((CHART / "alerts.yaml").read_text())["rules"]
DASHBOARD: dict[str, Any] = json.loads((CHART / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
# Of Grafana's own list, as far as they are used.
UNITS = {"short", "s", "ops", "reqps"}


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("sum(headway_ready", "invalid promql|unexpected|unclosed"),
        ("sum(headway_reddy)", "no such metric: headway_reddy"),
        ("sum(rate(headway_store_seconds[5m]))", "no such metric: headway_store_seconds"),
        ("max by (queu) (headway_queue_messages)", "no such label: {'queu'}"),
        ('headway_ready{queue="a"}', "no such label: queue"),
        ('headway_queue_messages{state="waits"}', "no such state"),
        ("sum(headway_calls_total)", "headway_calls_total is a counter"),
        ("sum(rate(headway_ready[5m]))", "headway_ready is a gauge"),
        ("histogram_quantile(0.9, sum(rate(headway_store_seconds_bucket[5m])))", "le is lost"),
        ("sum by (pod) (headway_ready) / sum by (job) (headway_ready)", "the sides have other labels"),
    ],
)
def test_what_is_wrong_with_a_query_is_noticed(query: str, complaint: str) -> None:
    with pytest.raises((AssertionError, ValueError), match=complaint):
        labels_left(query)


# -- alerts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_what_there_is_and_tells_only_what_it_knows(rule: dict[str, Any]) -> None:
    left = labels_left(rule["expr"])
    assert left is not None
    for text in rule["annotations"].values():
        assert {*texts_in(text)} <= left, text


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_it_means_and_how_bad_it_is(rule: dict[str, Any]) -> None:
    assert rule.keys() == {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"].keys() == {"summary", "description"}
    assert all(text.endswith(".") for text in rule["annotations"].values())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_of_a_quantile_can_fire(rule: dict[str, Any]) -> None:
    """What lies beyond the last bound of a histogram is told as that bound."""
    asked = re.search(r"histogram_quantile\(.*?headway_(\w+)_bucket.*> ([\d.]+)$", rule["expr"].strip(), re.DOTALL)
    assert (asked is None) == ("histogram_quantile" not in rule["expr"])
    if asked is not None:
        counts = Counts(most_queues=1)
        bounds = {
            "position_lag_seconds": counts.position_lag.bounds,
            "event_loop_lag_seconds": counts.loop_lag.bounds,
            "store_seconds": counts.store[""].bounds,
        }
        assert float(asked[2]) < bounds[asked[1]][-1]


def test_an_alert_of_defects_fires_for_a_single_burst() -> None:
    """An increase is seen for as long as its window, less what lies between two scrapes."""
    (rule,) = (rule for rule in RULES if rule["alert"] == "HeadwayCallsFail")
    asked = re.search(r'increase\(headway_calls_total\{code="(\w+)"\}\[(\d+)m\]\)+ > 0$', rule["expr"])
    assert asked is not None
    assert asked[1] == DEFECT
    assert int(rule["for"].removesuffix("m")) + 2 <= int(asked[2])


def test_a_message_whose_id_is_known_is_no_producer_turned_away() -> None:
    (rule,) = (rule for rule in RULES if rule["alert"] == "HeadwayPutsRefused")
    known = DuplicateMessage.reason.name
    assert matchers_in(rule["expr"]) == [("headway_puts_refused_total", {f"reason {MatchOp.NotEqual} {known}"})]


def test_a_queue_stands_only_if_no_pod_delivers_and_the_store_saw_no_ack() -> None:
    """A pod that has no series of a queue counts what it delivers of it among the others, and so do all for those of
    which none has."""
    (rule,) = (rule for rule in RULES if rule["alert"] == "HeadwayQueueStands")
    waiting, *unless = matchers_in(rule["expr"])
    assert waiting == (
        "headway_queue_messages",
        {f"state {MatchOp.Equal} waiting", f"queue {MatchOp.NotEqual} {OTHERS}"},
    )
    assert unless == [("headway_messages_delivered_total", set()), ("headway_messages_acked_total", set())]
    (acked,) = (metric for metric in metric_names.ALL if metric.name == unless[1][0])
    assert acked.is_of_store


def test_alerts_can_be_told_apart_and_are_told_in_the_runbook() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    runbook = (CHART.parents[1] / "docs/operations.md").read_text()
    assert [name for name in names if f"`{name}`" not in runbook] == []


def test_every_alert_but_those_that_are_not_wanted_is_made() -> None:
    def made(*settings: str) -> list[str]:
        (group,) = the(rendered("url", "prometheusRule.enabled=true", *settings), "PrometheusRule")["spec"]["groups"]
        for rule in group["rules"]:
            assert rule in RULES
        return [rule["alert"] for rule in group["rules"]]

    assert made() == [rule["alert"] for rule in RULES]
    assert set(made()) - set(made("prometheusRule.disabled={HeadwayDown,HeadwayLoopLags}")) == {
        "HeadwayDown",
        "HeadwayLoopLags",
    }


@pytest.mark.parametrize(
    ("release", "namespace", "job"), [("hw", "work", "hw-headway"), ("other", "play", "other-headway")]
)
def test_alerts_are_of_the_release_that_its_monitor_scrapes(release: str, namespace: str, job: str) -> None:
    on = ["--set", "prometheusRule.enabled=true,serviceMonitor.enabled=true"]
    done = helm("template", release, CHART, "--namespace", namespace, *values_of("url"), *on)
    assert done.returncode == 0, done.stderr
    objects = [each for each in yaml.safe_load_all(done.stdout) if each]
    # What Prometheus calls the job: the Service, without a jobLabel.
    assert "jobLabel" not in the(objects, "ServiceMonitor")["spec"]
    assert job in {each["metadata"]["name"] for each in of_kind(objects, "Service")}
    own = {f"namespace {MatchOp.Equal} {namespace}", f"job {MatchOp.Equal} {job}"}
    (group,) = the(objects, "PrometheusRule")["spec"]["groups"]
    for made, rule in zip(group["rules"], RULES, strict=True):
        assert {**made, "expr": ""} == {**rule, "expr": ""}
        assert labels_left(made["expr"]) == labels_left(rule["expr"])
        assert matchers_in(made["expr"]) == [(name, told | own) for name, told in matchers_in(rule["expr"])]


# -- the dashboard ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_asks_for_what_there_is_and_says_what_it_shows(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["targets"]
    for target in panel["targets"]:
        left = labels_left(target["expr"])
        assert left is not None
        assert set(texts_in(target["legendFormat"])) <= left, target["legendFormat"]
        assert len(left) == 0 or target["legendFormat"].count("{{") == len(left)


def test_every_metric_is_shown() -> None:
    shown = str(PANELS)
    assert [metric.name for metric in metric_names.ALL if not re.search(rf"\b{metric.name}(_\w+)?\b", shown)] == []


def test_what_the_store_tells_is_not_added_up_and_what_processes_counted_is() -> None:
    """Every process tells the same of the store, so a sum over them would be as many times too much."""
    of_store = [metric.name for metric in metric_names.ALL if metric.is_of_store]
    queries = [rule["expr"] for rule in RULES] + [target["expr"] for panel in PANELS for target in panel["targets"]]
    assert of_store
    for query in queries:
        for name in of_store:
            before, found, _ = query.partition(name)
            aggregations = re.findall(r"\b(sum|max|min|count)\b", before)
            assert not found or aggregations[-1] == "max", query


def test_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_dashboard_arrives_as_it_is_and_its_variables_are_its_own() -> None:
    (found,) = of_kind(rendered("url", "dashboard.enabled=true"), "ConfigMap", "dashboard")
    assert [json.loads(text) for text in found["data"].values()] == [DASHBOARD]
    variables = {each["name"] for each in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource", "namespace", "job", "queue_namespace", "queue"}
    for each in DASHBOARD["templating"]["list"]:
        if each["type"] == "query":
            metric, label = each["query"].removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
            left = labels_left(metric)
            assert left is not None
            assert label in left
