"""How long somebody who only looks waits for the store, and what trouble with it means then: nobody cares whether a
look happened."""

from __future__ import annotations

from collections.abc import Iterable

from headwayd.domain.errors import HeadwayError, OutcomeUnknown, StoreUnavailable
from headwayd.domain.limits import STORE_BUDGET_S

SHORT_PAUSE_S = 0.05  # before the next look, where that may go better
TROUBLE_PAUSE_S = 0.25
_LEAST_BUDGET_S = 0.02  # a look for somebody whose time is nearly over is still made


def look_budget_s(untils: Iterable[float], now: float) -> float:
    """What a look may take: it is for those who must be answered until then, and for others."""
    return max(min(STORE_BUDGET_S, min(untils, default=float("inf")) - now), _LEAST_BUDGET_S)


def may_pass(error: HeadwayError) -> bool:
    """Whether looking again at once may go better: the answer was lost, or was late for somebody else's little time."""
    return isinstance(error, OutcomeUnknown) or (
        isinstance(error, StoreUnavailable) and error.metadata.get("cause") == "SILENT"
    )


def of_a_look(error: HeadwayError) -> HeadwayError:
    """The error as whoever looked is told it."""
    return error.as_undone() if isinstance(error, OutcomeUnknown) else error


def silent() -> StoreUnavailable:
    """There was no answer at all in the time that there was."""
    return StoreUnavailable("the store did not answer in time", metadata={"cause": "SILENT"})
