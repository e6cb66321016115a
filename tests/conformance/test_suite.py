"""The suite itself: what it covers, and that nothing passes which should not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from conformance import schema
from conformance.driving import DriverFailed, RefusedByService
from conformance.languages import LANGUAGES
from conformance.matching import Mismatch, compare, filled, load, part_of
from conformance.playing import Player
from conformance.scenarios import (
    BadScenario,
    Scenario,
    beyond_http,
    known_failures,
    read_scenarios,
    rules,
)
from headway.v1.error_reason_pb2 import ErrorReason

SCENARIOS = read_scenarios()
# Reason → why no client can meet it.
NEVER_MET = {
    "UNSPECIFIED": "never sent",
    "NOT_IMPLEMENTED": "every call and field of the schema that the clients are made from is served",
}


def test_every_scenario_has_a_name_of_its_own_and_says_something() -> None:
    assert len(SCENARIOS) >= 60
    assert len({scenario.id for scenario in SCENARIOS}) == len(SCENARIOS)
    assert all(scenario.says.endswith(".") and scenario.proves for scenario in SCENARIOS)


def test_every_rule_that_a_scenario_proves_is_one_of_the_protocol() -> None:
    claimed = {rule for scenario in SCENARIOS for rule in scenario.proves}
    assert claimed <= rules()


def test_every_call_is_made() -> None:
    assert schema.every_rpc() == {rpc for scenario in SCENARIOS for rpc in scenario.rpcs}


def test_every_call_of_one_request_is_made_over_http_too() -> None:
    played = {rpc for scenario in SCENARIOS if not beyond_http(scenario) for rpc in scenario.rpcs}
    made = {rpc for scenario in SCENARIOS for rpc in scenario.rpcs}
    assert made - played == {"Consume", "Produce"}


def test_what_is_beyond_http_says_why() -> None:
    step = {"open": "Produce", "as": "s", "expect": {}}
    both_ways = Scenario(id="x", says="X.", proves=("P-GEN-1",), steps=(step,))
    several = replace(both_ways, steps=({"call": "List", "expect": {}},), options={"services": ["one", "two"]})
    assert "both ways" in beyond_http(both_ways)
    assert "several addresses" in beyond_http(several)
    assert not beyond_http(replace(several, options={"services": ["one"]}))


def test_ways_over_http_play_every_scenario_between_them() -> None:
    (ways,) = [language.over_http for language in LANGUAGES.values() if language.over_http]
    assert [way.name for way in ways if way.part == (1, 1)] == ["web"]
    assert sorted(way.part for way in ways if way.part != (1, 1)) == [(1, 3), (2, 3), (3, 3)]


def test_every_reason_is_met_or_it_is_said_why_not() -> None:
    met = {word.removeprefix("ERROR_REASON_") for scenario in SCENARIOS for word in scenario.reasons}
    reasons = {name.removeprefix("ERROR_REASON_") for name in ErrorReason.DESCRIPTOR.values_by_name}
    assert reasons - met == NEVER_MET.keys()


def test_known_failures_are_of_scenarios_and_languages_that_there_are() -> None:
    ids = {scenario.id for scenario in SCENARIOS}
    for (language, scenario), reason in known_failures().items():
        assert language in LANGUAGES
        assert scenario in ids
        assert reason


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"steps": ({"call": "Describe"},)}, "expects nothing"),
        ({"steps": ({"request": {}, "call": "Describe", "expect": {}},)}, "begins with its verb"),
        ({"steps": ({"call": "Describ", "expect": {}},)}, "the schema has no"),
        ({"steps": ({"call": "Describe", "expect": {}, "start": "s"},)}, "awaited"),
        ({"steps": ({"call": "Describe", "expect": {}, "error": {}},)}, "one thing"),
        ({"steps": ({"call": "Describe", "expect": {}},), "stage": "nowhere"}, "nowhere"),
        ({"steps": ({"call": "Describe", "expect": {}},), "tries": 0}, "never played"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_scenario_that_cannot_be_meant_is_refused(broken: dict[str, Any], why: str) -> None:
    with pytest.raises(BadScenario, match=why):
        Scenario(**{"id": "x", "says": "X.", "proves": ("P-GEN-1",)} | broken)


class Told:
    """An answer that was there before the question."""

    def __init__(self, number: int, answer: dict[str, Any] | RefusedByService) -> None:
        self.number = number
        self._answer = answer

    def is_answered(self) -> bool:
        return True

    async def answer(self) -> dict[str, Any]:
        if isinstance(self._answer, RefusedByService):
            raise self._answer
        return self._answer


Answering = Callable[[str, dict[str, Any]], dict[str, Any] | RefusedByService]


class Pretender:
    """A driver that speaks to no service."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._count = 0

    def ask(self, op: str, **fields: Any) -> Told:
        self._count += 1
        # It does connect: a scenario should not fail before it begins.
        answer = {} if op in ("connect", "disconnect", "cancel") else self._answering(op, fields)
        return Told(self._count, answer)

    async def event(self, kind: str, handle: str) -> dict[str, Any]:
        told = {"lease": f"{handle}/1", "message": {}, "attempt": 0, "error": None}
        return told | {"event": kind, "handle": handle}


class Nowhere:
    """A scene with no service, where faults do nothing."""

    def __init__(self) -> None:
        self.addresses = dict.fromkeys(("service", "one", "two"), "127.0.0.1:1")
        self.direct = "127.0.0.1:1"
        self.options: dict[str, Any] = {}
        self.files = dict.fromkeys(("other_ca", "known.cert", "known.key", "unknown.token"), "no file")

    async def fault(self, kind: str, about: str, queue: str) -> None:
        pass


def nothing(op: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {}


def defaults(op: str, fields: dict[str, Any]) -> dict[str, Any]:
    """What a client says that reads every message as an empty one."""
    answers: dict[str, dict[str, Any]] = {
        "call": {"response": {}},
        "next": {"response": {}},
        "put": {"results": []},
        "lease": {"message": {}, "attempt": 0, "ticket": "0", "traceparent": None},
        "watch_next": {"event": {"kind": "position"}},
        "lease_is_lost": {"lost": False},
    }
    return answers.get(op, {})


def echo(op: str, fields: dict[str, Any]) -> dict[str, Any]:
    return defaults(op, fields) | {key: value for key, value in fields.items() if key in ("messages", "queue")}


def always_an_error(op: str, fields: dict[str, Any]) -> RefusedByService:
    said: dict[str, Any] = {"code": "UNKNOWN", "reason": None, "metadata": {}, "retry_after_ms": None, "violations": []}
    return RefusedByService(said | {"outcome_unknown": False, "text": "no"})


@pytest.mark.parametrize("answering", [nothing, defaults, echo, always_an_error])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.id)
async def test_no_scenario_passes_with_a_driver_that_asks_no_service(scenario: Scenario, answering: Answering) -> None:
    with pytest.raises((Mismatch, RefusedByService, DriverFailed)):
        await Player(scenario, Pretender(answering), Nowhere(), patience_s=0).play()


class Never(Told):
    """An answer that does not come."""

    async def answer(self) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError


async def test_answer_that_comes_too_late_is_none() -> None:
    driver = Pretender(nothing)
    ask, step = driver.ask, {"call": "Describe", "within": 0.01, "error": {"code": "DEADLINE_EXCEEDED"}}
    driver.ask = lambda op, **fields: Never(0, {}) if op == "call" else ask(op, **fields)  # type: ignore[method-assign]
    scenario = Scenario(id="x", says="X.", proves=("P-GEN-1",), queue=None, steps=(step,))
    with pytest.raises(Mismatch, match=r"no answer within 0\.01 s"):
        await Player(scenario, driver, Nowhere()).play()


@pytest.mark.parametrize(
    ("expected", "meets", "fails"),
    [
        ("{a: 1}", [{"a": "1", "b": 2}, {"a": 1}], [{"a": 2}, {}, [], None]),
        ("{a: 0, b: '', c: false, d: []}", [{}, {"a": "0", "c": False}], [{"a": 1}, {"c": True}, {"d": [1]}]),
        ("[1, 2]", [[1, "2"]], [[1], [1, 2, 3], {}, None]),
        ("a: null", [{}, {"a": None}], [{"a": ""}, {"a": 0}]),
        ("a: true", [{"a": True}], [{"a": 1}, {"a": "true"}, {}]),
        ("!any", [1, "x", [0]], [0, "", None, [], {}, "0", False]),
        ("!unset", [0, None, ""], [1, "x"]),
        ("!re 'a.c'", ["abc"], ["abcd", "ac"]),
        ("!not 3", [4, "4", None], [3, "3"]),
        ("!ge 3", ["3", 4], [2, None, "2"]),
        ("!le 3", ["3", 2, None], [4]),
        ("!seconds [1, 2]", ["1s", "1.5s", "2.000s"], ["0.9s", None, "3s"]),
        ("!len 2", [[1, 2]], [[1], None]),
        ("!has [{a: 1}]", [[{"a": 2}, {"a": 1}]], [[], [{"a": 2}], None]),
        ("!unordered [1, 2]", [[2, 1]], [[1], [1, 1], [1, 2, 3]]),
        ("!text hé", ["aMOp"], ["h"]),
        ("!hex 00ff", ["AP8="], ["AP8"]),
        ("!fill 3", ["eHh4"], [""]),
    ],
)
def test_expectation_is_met_by_what_it_says_and_nothing_else(expected: str, meets: list[Any], fails: list[Any]) -> None:
    wanted = load(expected)
    for actual in meets:
        compare(actual, wanted)
    for actual in fails:
        with pytest.raises(Mismatch):
            compare(actual, wanted)


def test_references_are_filled_and_missing_ones_are_told() -> None:
    variables = {"n": 3, "name": "x"}
    assert filled(load("{a: '${n}', b: 'is ${name}', c: [!not '${n}']}"), variables)["b"] == "is x"
    assert filled("${n}", variables) == 3
    assert filled(load("!times {count: 2, item: {id: 'm${i}'}}"), {}) == [{"id": "m1"}, {"id": "m2"}]
    with pytest.raises(Mismatch, match="nobody"):
        filled("${nobody}", variables)
    with pytest.raises(Mismatch, match=r"no a\.1"):
        part_of({"a": [1]}, "a.1")


def test_answer_that_is_not_of_the_schema_is_refused() -> None:
    assert schema.answer_of("Put", {"results": [{"ticket": "7", "bodyDiffers": True}]})["results"][0]["ticket"] == "7"
    wrong: list[Any] = [None, [], {"result": []}, {"results": [{"ticket": "many"}]}]
    for nonsense in wrong:
        with pytest.raises(Mismatch):
            schema.answer_of("Put", nonsense)
