"""What trouble with the store means for somebody who only looks: nobody cares whether a look happened."""

from __future__ import annotations

from headwayd.domain.errors import HeadwayError, OutcomeUnknown, StoreUnavailable


def may_pass(error: HeadwayError) -> bool:
    """Whether looking again at once may go better: the answer was lost, or was late for somebody else's little time."""
    return isinstance(error, OutcomeUnknown) or (
        isinstance(error, StoreUnavailable) and error.metadata.get("cause") == "SILENT"
    )


def of_a_look(error: HeadwayError) -> HeadwayError:
    """The error as whoever looked is told it."""
    if isinstance(error, OutcomeUnknown):
        return StoreUnavailable("the store did not answer", metadata={"cause": error.metadata.get("cause", "SILENT")})
    return error


def silent() -> StoreUnavailable:
    """There was no answer at all in the time that there was."""
    return StoreUnavailable("the store did not answer in time", metadata={"cause": "SILENT"})
