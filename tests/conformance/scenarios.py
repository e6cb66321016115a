"""The scenarios: read from `scenarios/*.yaml`, and checked as far as that goes without playing them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from conformance import schema
from conformance.languages import ROOT
from conformance.matching import Times, filled, load
from conformance.stage import KINDS

FOLDER = Path(__file__).parent / "scenarios"
KNOWN_FAILURES = Path(__file__).parent / "known_failures.yaml"

# Operation of a driver, as a step names it → the field that stands behind the name.
OPERATIONS = {
    "connect": "client",
    "disconnect": "client",
    "call": "rpc",
    "open": "rpc",
    "send": "handle",
    "half_close": "handle",
    "next": "handle",
    "close": "handle",
    "put": "messages",
    "lease": "handle",
    "lease_end": "handle",
    "lease_ack": "handle",
    "lease_delay": "handle",
    "lease_progress": "handle",
    "lease_is_lost": "handle",
    "work": "handle",
    "finish": "handle",
    "work_stop": "handle",
    "watch": "handle",
    "watch_next": "handle",
    "watch_close": "handle",
}
# What a step can be that the runner does itself.
OF_RUNNER = {"await", "cancel", "pending", "handling", "cancelled", "ended", "fault"}
# What an answer should be; `until` and `until_error` make the operation again until it is.
EXPECTATIONS = {"expect", "until", "error", "until_error", "ends", "silent"}
# What stands beside any operation. `start` gives it a name and does not wait for its answer; `within` says how many
# seconds that may take, where a driver's answer may take longer.
BESIDE = EXPECTATIONS | {"keep", "start", "to", "within"}
_WORDS = re.compile(r"[A-Z][A-Z_]+")
_RULE = re.compile(r"\*\*(P-[A-Z]+-\d+)\*\*")


def verb_of(step: dict[str, Any]) -> str:
    """What a step does: the first of its keys."""
    return next(iter(step))


class BadScenario(Exception):
    """A scenario that cannot be played as it is written."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One claim about the service and the client in front of it.

    queue: the policy of the queue that is there when it begins; None: there is none.
    stage: the kind of scene; options: of that scene.
    tries: how often it is played at most until it holds: more than once only if a pause of the machine can end what it
    looks at, and what it guards against would end that each time.
    """

    id: str
    says: str
    proves: tuple[str, ...]
    steps: tuple[dict[str, Any], ...]
    queue: dict[str, Any] | None = field(default_factory=dict)
    stage: str = "shared"
    options: dict[str, Any] = field(default_factory=dict)
    tries: int = 1

    def __post_init__(self) -> None:
        problem = next(self._problems(), None)
        if problem:
            raise BadScenario(f"scenario {self.id}: {problem}")

    @property
    def rpcs(self) -> set[str]:
        """The RPCs that it calls as such."""
        return {step[verb] for step in self.steps if (verb := verb_of(step)) in ("call", "open")}

    @property
    def reasons(self) -> set[str]:
        """The words in capitals that its expectations name, reasons of errors among them."""
        said = [step[key] for step in self.steps for key in EXPECTATIONS if key in step]
        return set(_WORDS.findall(str(said)))

    def _problems(self) -> Any:
        if self.stage not in KINDS:
            yield f"no scene is called {self.stage!r}"
        if self.tries < 1:
            yield "it is never played"
        if not any(EXPECTATIONS & step.keys() for step in self.steps):
            yield "it expects nothing"
        for step in self.steps:
            if verb_of(step) not in OPERATIONS.keys() | OF_RUNNER:
                yield f"a step begins with its verb: {step}"
            if len(EXPECTATIONS & step.keys()) > 1:
                yield f"a step expects one thing: {step}"
        if unknown := self.rpcs - schema.every_rpc():
            yield f"the schema has no {', '.join(unknown)}"
        started = [step["start"] for step in self.steps if "start" in step]
        awaited = [step["await"] for step in self.steps if verb_of(step) == "await"]
        if sorted(started) != sorted(awaited):
            yield f"what is started is awaited once: {started}, {awaited}"


@cache
def read_scenarios() -> list[Scenario]:
    """All of them, by file and in the order of each file. Raises BadScenario."""
    found: list[Scenario] = []
    for path in sorted(FOLDER.glob("*.yaml")):
        for told in load(path.read_text()):
            try:
                steps = [
                    step for each in told["steps"] for step in (filled(each, {}) if isinstance(each, Times) else [each])
                ]
                parts = told | {"proves": tuple(told["proves"]), "steps": tuple(steps)}
                found.append(Scenario(**parts))
            except (KeyError, TypeError) as error:
                raise BadScenario(f"{path.name}, {told.get('id')}: {error!r}") from error
    return found


def beyond_http(scenario: Scenario) -> str:
    """Why nobody can play it at the HTTP port by connect-web; "" if it can be played."""
    for rpc in sorted(scenario.rpcs):
        if schema.method_of(rpc).client_streaming:
            return f"{rpc} streams both ways, which neither HTTP/1.1 nor a browser can"
    if scenario.stage == "secured":
        return "its certificates are the browser's business: connect-web has no say in TLS"
    if len(scenario.options.get("services", ())) > 1:
        return "it needs a client of several addresses, and connect-web has one"
    return ""


def _unrolled(steps: list[Any]) -> Iterator[dict[str, Any]]:
    for step in steps:
        yield from filled(step, {}) if isinstance(step, Times) else [step]


def known_failures() -> dict[tuple[str, str], str]:
    """(language, scenario) → why it is known to fail."""
    listed = load(KNOWN_FAILURES.read_text()) or []
    return {(each["language"], each["scenario"]): each["reason"] for each in listed}


def rules() -> set[str]:
    """The ids of all rules of docs/protocol.md."""
    return set(_RULE.findall((ROOT / "docs/protocol.md").read_text()))
