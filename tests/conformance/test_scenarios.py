"""Every scenario in every language."""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable

import pytest
from _pytest.mark import ParameterSet

from conformance.driving import DriverProcess
from conformance.languages import BUILD_S, CORE, LANGUAGES, language_of
from conformance.playing import Player
from conformance.scenarios import Scenario, beyond_http, known_failures, read_scenarios, verb_of
from conformance.stage import Stage
from conformance.table import MARK

# Whichever test comes first waits until the driver is built; a scenario has a shorter bound of its own.
pytestmark = pytest.mark.timeout(2 * BUILD_S)


# What a layer adds to the stubs: a scenario that does one of these is played by the core alone, too.
OF_LAYERS = {"put", "lease", "work", "watch"}


def cases() -> list[ParameterSet]:
    """Every scenario with every driver of every language; one that is known to fail fails if it passes."""
    known = known_failures()
    made = []
    for language in LANGUAGES.values():
        for driver, (number, scenario) in itertools.product(language.drivers, enumerate(read_scenarios())):
            if driver.endswith(CORE) and OF_LAYERS.isdisjoint(map(verb_of, scenario.steps)):
                continue
            if driver in language.ways:
                part, parts = language.ways[driver].part
                if number % parts != part - 1:
                    continue
            reason = known.get((language.name, scenario.id))
            marks = [pytest.mark.xfail(strict=True, reason=reason)] if reason else []
            if scenario.tries > 1:
                marks.append(pytest.mark.flaky(reruns=scenario.tries - 1))
            made.append(pytest.param(driver, scenario, marks=marks, id=f"{driver}-{scenario.id}"))
    return made


@pytest.mark.parametrize(("language", "scenario"), cases())
async def test_scenario(
    language: str,
    scenario: Scenario,
    stage: Stage,
    driver_of: Callable[[str], Awaitable[DriverProcess]],
    record_property: Callable[[str, object], None],
) -> None:
    record_property(MARK, json.dumps([scenario.id, language, scenario.proves]))
    over_http = language in LANGUAGES[language_of(language)].ways
    if over_http and (reason := beyond_http(scenario)):
        pytest.skip(reason)
    driver = await driver_of(language)
    async with stage.scene(scenario.stage, scenario.options, over_http=over_http) as scene:
        await Player(scenario, driver, scene).play()
