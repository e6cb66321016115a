"""The Grafana dashboard of the chart, made from the table below: a row of panels for each question that one may have.

Of a queue's own numbers every process tells the store's, so the greatest counts; what processes counted is added up.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

PATH = Path(__file__).resolve().parent.parent / "helm/headway/dashboard.json"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_HERE = 'namespace="$namespace", job="$job"'
_QUEUE = f'{_HERE}, queue_namespace=~"$queue_namespace", queue=~"$queue"'
_OF = "queue_namespace, queue"
_NAME = "{{queue_namespace}}/{{queue}}"
_COLUMNS, _HEIGHT = 24, 8


class Panel(NamedTuple):
    """One graph. `unit` is Grafana's name of it; each query has the text of its legend. Three stand in a row."""

    title: str
    unit: str
    text: str
    queries: dict[str, str]


def _rate(metric: str, by: str, within: str = _HERE) -> str:
    return f"sum by ({by}) (rate({metric}{{{within}}}[$__rate_interval]))"


def _percentile(share: float, metric: str, by: str = "", within: str = _HERE) -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, {_rate(f'{metric}_bucket', labels, within)})"


def _average(metric: str, by: str) -> str:
    return f"{_rate(f'{metric}_sum', by)} / {_rate(f'{metric}_count', by)}"


ROWS: dict[str, list[Panel]] = {
    "Is it well?": [
        Panel(
            "Pods that are ready",
            "short",
            "They want calls, and their store answers.",
            {
                f"sum(headway_ready{{{_HERE}}})": "ready",
                f"sum(headway_store_reachable{{{_HERE}}})": "reach the store",
                f"count(headway_ready{{{_HERE}}})": "all",
            },
        ),
        Panel("Calls", "reqps", "By how they ended.", {_rate("headway_calls_total", "code"): "{{code}}"}),
        Panel(
            "Versions",
            "short",
            "Pods of each; more than one only while they are rolled out.",
            {f"count by (version) (headway_build_info{{{_HERE}}})": "{{version}}"},
        ),
    ],
    "What waits?": [
        Panel("Queues", "short", "How many there are.", {f"max(headway_queues{{{_HERE}}})": "queues"}),
        Panel(
            "Messages",
            "short",
            "By state; the dead wait for somebody to look at them.",
            {f"max by ({_OF}, state) (headway_queue_messages{{{_QUEUE}}})": f"{_NAME} {{{{state}}}}"},
        ),
        Panel(
            "Oldest message",
            "s",
            "How long the one at the head has waited.",
            {f"max by ({_OF}) (headway_queue_oldest_age_seconds{{{_QUEUE}}})": _NAME},
        ),
        Panel(
            "Who waits",
            "short",
            "Consumers for messages, producers for room.",
            {f"max by ({_OF}, line) (headway_queue_waiters{{{_QUEUE}}})": f"{_NAME} {{{{line}}}}"},
        ),
        Panel(
            "Wait",
            "s",
            "From put to lease.",
            {
                _percentile(0.5, "headway_wait_seconds", _OF, _QUEUE): f"{_NAME} median",
                _percentile(0.99, "headway_wait_seconds", _OF, _QUEUE): f"{_NAME} p99",
            },
        ),
        Panel(
            "Work",
            "s",
            "From lease to ack.",
            {
                _percentile(0.5, "headway_work_seconds", _OF, _QUEUE): f"{_NAME} median",
                _percentile(0.99, "headway_work_seconds", _OF, _QUEUE): f"{_NAME} p99",
            },
        ),
        Panel(
            "In and out",
            "ops",
            "Messages put and delivered.",
            {
                _rate("headway_messages_put_total", _OF, _QUEUE): f"{_NAME} put",
                _rate("headway_messages_delivered_total", _OF, _QUEUE): f"{_NAME} delivered",
            },
        ),
    ],
    "What goes wrong?": [
        Panel(
            "Settled",
            "ops",
            "By how leases ended.",
            {_rate("headway_messages_settled_total", f"{_OF}, how", _QUEUE): f"{_NAME} {{{{how}}}}"},
        ),
        Panel(
            "Acked",
            "ops",
            "Through whichever process.",
            {f"max by ({_OF}) (rate(headway_messages_acked_total{{{_QUEUE}}}[$__rate_interval]))": _NAME},
        ),
        Panel(
            "Delivered again",
            "ops",
            "Messages that were delivered before.",
            {_rate("headway_messages_redelivered_total", _OF, _QUEUE): _NAME},
        ),
        Panel(
            "Puts refused",
            "ops",
            "By the reason that callers were told.",
            {_rate("headway_puts_refused_total", f"{_OF}, reason", _QUEUE): f"{_NAME} {{{{reason}}}}"},
        ),
        Panel(
            "Leases that lapsed",
            "ops",
            "Nobody settled them in time: workers died, or take longer than their leases.",
            {f"max by ({_OF}) (rate(headway_leases_lapsed_total{{{_QUEUE}}}[$__rate_interval]))": _NAME},
        ),
        Panel(
            "Leases given back",
            "ops",
            "Because whoever held them has gone, by cause.",
            {_rate("headway_leases_released_total", "cause"): "{{cause}}"},
        ),
        Panel(
            "Deduplicated",
            "ops",
            "Messages that were there already.",
            {_rate("headway_messages_deduplicated_total", _OF, _QUEUE): _NAME},
        ),
    ],
    "Is what is told true?": [
        Panel(
            "Who watches",
            "short",
            "Watches of places and queues, and all streams.",
            {f"sum(headway_watchers{{{_HERE}}})": "watches", f"sum(headway_streams{{{_HERE}}})": "streams"},
        ),
        Panel(
            "Positions learn late",
            "s",
            "From a move of the line to the message that tells it.",
            {
                _percentile(0.5, "headway_position_lag_seconds"): "median",
                _percentile(0.99, "headway_position_lag_seconds"): "p99",
            },
        ),
        Panel(
            "Estimates",
            "short",
            "How long a wait was, to what was expected: 1 is right.",
            {
                _percentile(0.1, "headway_eta_error_ratio"): "p10",
                _percentile(0.5, "headway_eta_error_ratio"): "median",
                _percentile(0.9, "headway_eta_error_ratio"): "p90",
            },
        ),
    ],
    "Is it fast?": [
        Panel(
            "Calls take",
            "s",
            "One of a hundred takes longer; waiting is counted.",
            {_percentile(0.99, "headway_call_seconds", "method"): "{{method}}"},
        ),
        Panel(
            "Store takes",
            "s",
            "One answer of a hundred takes longer, by script.",
            {_percentile(0.99, "headway_store_seconds", "script"): "{{script}}"},
        ),
        Panel(
            "Calls in one step of the store",
            "short",
            "On average; the busier, the more go together.",
            {_average("headway_store_together", "pod"): "{{pod}}"},
        ),
        Panel(
            "Event loop lags",
            "s",
            "How late a process does what it should do at once, one time in a hundred.",
            {_percentile(0.99, "headway_event_loop_lag_seconds", "pod"): "{{pod}}"},
        ),
        Panel(
            "Floods kept out",
            "short",
            "1 while a pod keeps a flood of calls out: then connections may have few calls at a time.",
            {f"max by (pod) (headway_flood_kept_out{{{_HERE}}})": "{{pod}}"},
        ),
    ],
}


def text() -> str:
    """The dashboard as Grafana reads it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for question, row in ROWS.items():
        place = {"x": 0, "y": y, "w": _COLUMNS, "h": 1}
        panels.append({"type": "row", "title": question, "gridPos": place, "collapsed": False, "panels": []})
        y += 1
        for index, panel in enumerate(row):
            column = index % 3
            width = _COLUMNS // 3
            panels.append(_graph(panel, {"x": column * width, "y": y, "w": width, "h": _HEIGHT}))
            if column == 2 or panel is row[-1]:
                y += _HEIGHT
    for number, made in enumerate(panels, 1):
        made["id"] = number
    dashboard = {
        "uid": "headway",
        "title": "Headway",
        "tags": ["headway"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": panels,
    }
    return json.dumps(dashboard, indent=1) + "\n"


def _graph(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "gridPos": place,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 10}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": query, "legendFormat": legend}
            for index, (query, legend) in enumerate(panel.queries.items())
        ],
    }


def _variables() -> list[dict[str, Any]]:
    def found(name: str, query: str, **more: Any) -> dict[str, Any]:
        told = {"type": "query", "name": name, "label": name, "query": query, "definition": query, "refresh": 2}
        return told | {"datasource": _SOURCE, "sort": 1} | more

    several = {"multi": True, "includeAll": True, "allValue": ".*"}
    return [
        {"type": "datasource", "name": "datasource", "label": "source", "query": "prometheus"},
        found("namespace", "label_values(headway_ready, namespace)"),
        found("job", 'label_values(headway_ready{namespace="$namespace"}, job)'),
        found("queue_namespace", f"label_values(headway_queue_messages{{{_HERE}}}, queue_namespace)", **several),
        found("queue", f"label_values(headway_queue_messages{{{_HERE}}}, queue)", **several),
    ]
