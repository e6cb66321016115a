"""What every machine has: one queue on a store whose scripts read the machine's clock, and a run of many examples.

The scripts run with one include replaced: the clock, which reads a key that the machine moves.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import Coroutine
from datetime import timedelta
from functools import cache
from typing import Any, ClassVar, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test

from harness import StoreServer
from headwayd.domain.errors import HeadwayError
from headwayd.store import keys, scripts
from headwayd.store.redis_store import RedisStore

T = TypeVar("T")
CLOCK_KEY = "stateful:now"
CLOCK = {"time": f"local NOW = tonumber(redis.call('GET', '{CLOCK_KEY}'))\n"}
PREFIX = "stateful"
BUDGET: dict[str, Any] = {"budget_s": 5.0}
EXAMPLES = int(os.environ.get("HEADWAY_STATEFUL_EXAMPLES", "75"))
# Shrinking takes minutes and is worth it only to whoever looks at a failure: HEADWAY_STATEFUL_SHRINK=1.
_PHASES = [Phase.explicit, Phase.reuse, Phase.generate] + [Phase.shrink] * (
    os.environ.get("HEADWAY_STATEFUL_SHRINK") == "1"
)


@cache
def _built(replaced: tuple[tuple[str, str], ...]) -> dict[str, scripts.Script]:
    """The scripts with these includes replaced."""
    return {name: scripts.build(name, dict(replaced)) for name in scripts.NAMES}


class StoreMachine(RuleBasedStateMachine):
    """One queue and a clock. Each has a `model`, from when the queue is made on."""

    server: ClassVar[StoreServer]
    replaced: ClassVar[dict[str, str]] = CLOCK
    process: ClassVar[str]
    steps: ClassVar[int] = 0  # done by all machines of this class

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.name = f"m{uuid.uuid4().hex[:12]}"
        self.base = keys.base_key(PREFIX, self.name)
        self.raw = self.server.client()
        self.store = RedisStore(
            self.server.url,
            prefix=PREFIX,
            process=self.process,
            embedded=False,
            call_timeout=timedelta(seconds=5),
            scripts=_built(tuple(self.replaced.items())),
        )
        self.now = 1_700_000_000_000
        self.raw.set(CLOCK_KEY, self.now)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        async def end() -> None:
            with contextlib.suppress(HeadwayError):
                await self.store.delete(self.name, **BUDGET)
            await self.store.close()

        self.run(end())
        left = list(self.raw.scan_iter(f"{self.base}*"))
        self.raw.close()
        self.loop.close()
        assert left == []

    @invariant()
    def a_step_is_counted(self) -> None:
        type(self).steps += 1  # invariants are checked once after each rule

    @invariant()
    def a_check_finds_nothing(self) -> None:
        if not hasattr(self, "model"):
            return
        findings = self.run(self.store.check(self.name, max_entries=10**6, **BUDGET)).findings
        assert [finding for finding in findings if "does no service sweep" not in finding] == []


def run_examples(machine: type[StoreMachine], *, steps_at_most: int, steps_at_least: int) -> str:
    """Runs EXAMPLES of them, of so many steps; Hypothesis gives some up early, so `steps_at_least` of one is what they
    must come to on average. Returns how many there were."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=steps_at_most,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            report_multiple_bugs=False,
            phases=_PHASES,
        ),
    )
    assert machine.steps >= steps_at_least * EXAMPLES
    return f"{machine.steps:,} in {EXAMPLES:,} examples"
