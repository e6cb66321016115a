"""What /metrics of a service tells, read as Prometheus reads it."""

from collections.abc import Mapping

import httpx
from prometheus_client import parser
from prometheus_client.openmetrics import parser as open_parser

from harness.service import ServiceProcess
from headwayd.domain.namespaces import DEFAULT
from headwayd.engine.counting.counts import OTHERS

OPEN = "application/openmetrics-text; version=1.0.0"
_PATIENCE_S = 10.0


class Scraped:
    """The samples of one scrape."""

    def __init__(self, text: str, *, is_open: bool) -> None:
        families = (open_parser if is_open else parser).text_string_to_metric_families(text)
        self.text = text
        self.names = set[str]()  # of all metrics that are told, without series, too
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in families:
            self.names.add(f"{family.name}_total" if family.type == "counter" else family.name)
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in self.samples, f"told twice: {key}"
                self.samples[key] = sample.value

    def value(self, name: str, **labels: str) -> float:
        """Of one series; 0 if there is none. A queue is of the default namespace unless another is named."""
        if "queue" in labels:
            labels = {"queue_namespace": OTHERS if labels["queue"] == OTHERS else DEFAULT} | labels
        return self.samples.get((f"headway_{name}", frozenset(labels.items())), 0.0)

    def has(self, name: str, **labels: str) -> bool:
        """Whether there is any series with these labels."""
        return any(each == f"headway_{name}" and labels.items() <= dict(pairs).items() for each, pairs in self.samples)

    def sum(self, name: str, **labels: str) -> float:
        """Over all series with these labels."""
        wanted = labels.items()
        return sum(
            value
            for (each, pairs), value in self.samples.items()
            if each == f"headway_{name}" and wanted <= dict(pairs).items()
        )

    def by(self, label: str, name: str, **labels: str) -> Mapping[str, float]:
        """The series with these labels, by another one."""
        wanted = labels.items()
        return {
            dict(pairs)[label]: value
            for (each, pairs), value in self.samples.items()
            if each == f"headway_{name}" and wanted <= dict(pairs).items()
        }

    @property
    def queues(self) -> set[str]:
        """Every value of the label."""
        return {value for _, pairs in self.samples for label, value in pairs if label == "queue"}


async def fetch(service: ServiceProcess, path: str, **options: object) -> httpx.Response:
    """GET, over a connection of its own."""
    async with httpx.AsyncClient(timeout=_PATIENCE_S) as client:
        return await client.get(f"{service.http}{path}", **options)  # type: ignore[arg-type]


async def scrape(service: ServiceProcess, *, accept: str = "") -> Scraped:
    """All metrics now."""
    answer = await fetch(service, "/metrics", headers={"accept": accept})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("application/openmetrics-text" if accept else "text/plain")
    return Scraped(answer.text, is_open=bool(accept))
