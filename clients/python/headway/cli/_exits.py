"""The exit codes of the command line: one table, for the help text and for every command."""

from enum import IntEnum

from headway.core import errors
from headway.core.error import HeadwayError


class ExitCode(IntEnum):
    """What the command line ends with."""

    OK = 0
    ERROR = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    BUSY = 5
    UNAVAILABLE = 6
    NOTHING = 7
    UNSOUND = 8
    UNDONE = 9
    INTERRUPTED = 130


MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done",
    ExitCode.ERROR: "any other error",
    ExitCode.USAGE: "wrong usage",
    ExitCode.NOT_FOUND: "no such queue, message or lease",
    ExitCode.REFUSED: "refused: not valid, exists already, closed, stale, too late, or not allowed",
    ExitCode.BUSY: "full or busy: no room, a foreign client holds the role, paused, overloaded",
    ExitCode.UNAVAILABLE: "the service or its store is away, or the outcome is unknown",
    ExitCode.NOTHING: "nothing there: no message came, or the queue is drained",
    ExitCode.UNSOUND: "check found something wrong",
    ExitCode.UNDONE: "watch: a message ended otherwise than done: dead, withdrawn, expired or deleted",
    ExitCode.INTERRUPTED: "interrupted (128 + the signal: 143 is SIGTERM)",
}

_BY_FAMILY: tuple[tuple[type[HeadwayError], ExitCode], ...] = (
    (errors.QueueDrained, ExitCode.NOTHING),
    (errors.RoleInUse, ExitCode.BUSY),
    (errors.QueuePaused, ExitCode.BUSY),
    (errors.NotFound, ExitCode.NOT_FOUND),
    (errors.Exhausted, ExitCode.BUSY),
    (errors.Unavailable, ExitCode.UNAVAILABLE),
    (errors.DeadlineExceeded, ExitCode.UNAVAILABLE),
    (errors.PreconditionFailed, ExitCode.REFUSED),
    (errors.AlreadyExists, ExitCode.REFUSED),
    (errors.InvalidArgument, ExitCode.REFUSED),
    (errors.Unauthenticated, ExitCode.REFUSED),
    (errors.PermissionDenied, ExitCode.REFUSED),
)


def exit_code(error: HeadwayError) -> ExitCode:
    """The code for a failed call: that of the first family it belongs to."""
    return next((code for family, code in _BY_FAMILY if isinstance(error, family)), ExitCode.ERROR)


def help_text() -> str:
    """The table as paragraphs, for the end of `headway --help`."""
    return "\n\n".join(["Exit codes:", *(f"{code.value}: {meaning}" for code, meaning in MEANINGS.items())])
