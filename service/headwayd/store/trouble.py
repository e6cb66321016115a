"""What the store's errors mean for a caller: which nothing happened, which are unknown."""

from __future__ import annotations

from typing import Any

from redis import exceptions as redis_errors

from headwayd.domain.errors import (
    HeadwayError,
    InternalError,
    NewerLayout,
    NotDurable,
    OutcomeUnknown,
    StoreFull,
    StoreUnavailable,
)
from headwayd.store.address import Host

# First words of error replies that mean: refused before anything was done.
_NOT_NOW = {
    "LOADING": "the store is loading its data",
    "READONLY": "the store is a read-only replica",
    "MISCONF": "the store cannot save to its disk and refuses writes",
    "BUSY": "the store is busy with a script that does not end",
    "CLUSTERDOWN": "the store's cluster is down",
    "MASTERDOWN": "the store has lost its primary",
    "TRYAGAIN": "the store is moving the queue's keys",
    "ASK": "the store is moving the queue's keys",
    "MOVED": "the store is a cluster, and this node does not have the queue's keys",
    "NOAUTH": "the store wants a password",
    "WRONGPASS": "the store does not accept the password, or does not know the user",
    "NOPASS": "the store has no password, and was given one",
    "UNREAD": "the file with the store's password cannot be read",
    "NOPERM": "the store's user may not do this",
}
_WORD_OF_CLASS: dict[type[Exception], str] = {
    redis_errors.BusyLoadingError: "LOADING",
    redis_errors.ReadOnlyError: "READONLY",
    redis_errors.MasterDownError: "MASTERDOWN",  # a kind of ClusterDownError, so it must come first
    redis_errors.ClusterDownError: "CLUSTERDOWN",
    redis_errors.TryAgainError: "TRYAGAIN",
    redis_errors.MovedError: "MOVED",  # a kind of AskError, so it must come first
    redis_errors.AskError: "ASK",
    redis_errors.OutOfMemoryError: "OOM",
    redis_errors.NoPermissionError: "NOPERM",
}
# What stands before the error that befalls a transaction only at its end.
_ABORTED = "Transaction discarded because of: "
# redis-py has one class for all that concerns passwords, and takes the first word off. What the rest begins with; the
# last one is our own.
_WORD_OF_REFUSED_PASSWORD = {
    "invalid": "WRONGPASS",
    "AUTH <password> called without": "NOPASS",
    "Client sent AUTH, but no": "NOPASS",
    "cannot read": "UNREAD",
}


class Moving(StoreUnavailable):
    """A node of a cluster does not serve the queue's slot now; nothing happened. `moved_to` does, if it is known;
    an empty host means the one that was asked."""

    def __init__(self, error: Exception) -> None:
        word = word_of(error)
        super().__init__(_NOT_NOW[word], metadata={"cause": "STORE"})
        self.moved_to: Host | None = None
        if isinstance(error, redis_errors.MovedError):
            self.moved_to = (error.host, error.port)


class Unlooked(StoreUnavailable):
    """The server has not said yet what it keeps, so nothing was written; nothing happened."""

    def __init__(self) -> None:
        super().__init__("the store has not said yet what it keeps", metadata={"cause": "STORE"})


def word_of(error: Exception) -> str:
    """The first word of an error reply, which redis-py keeps for some errors as a class and for others in the text."""
    for known, word in _WORD_OF_CLASS.items():
        if isinstance(error, known):
            return word
    if isinstance(error, redis_errors.AuthenticationError):
        words = (word for begins, word in _WORD_OF_REFUSED_PASSWORD.items() if str(error).startswith(begins))
        return next(words, "NOAUTH")
    return str(error).removeprefix(_ABORTED).split(" ", 1)[0]


def refused(error: Exception) -> HeadwayError:
    """An error reply, in domain words."""
    word = word_of(error)
    if word == "OOM":
        return StoreFull("the store is out of memory")
    if word == "NOREPLICAS":
        return NotDurable("the store has too few replicas to accept writes")
    if word == "NEWERLAYOUT":  # our own scripts' word (lua/include/meta.lua)
        return NewerLayout("a newer version has changed how the queue is kept", metadata={"cause": "LAYOUT"})
    if word in ("MOVED", "ASK", "TRYAGAIN"):
        return Moving(error)
    if word in _NOT_NOW:
        cause = word if word in ("LOADING", "READONLY", "MISCONF", "BUSY", "CLUSTERDOWN") else "STORE"
        return StoreUnavailable(_NOT_NOW[word], metadata={"cause": cause})
    return InternalError(f"the store answered {word}")


def unreachable(error: Exception) -> StoreUnavailable:
    """No connection: nothing happened."""
    if isinstance(error, (redis_errors.ResponseError, redis_errors.BusyLoadingError, redis_errors.AuthenticationError)):
        translated = refused(error)
        if isinstance(translated, StoreUnavailable):
            return translated
    cause = "SILENT" if isinstance(error, (redis_errors.TimeoutError, TimeoutError)) else "REFUSED"
    return StoreUnavailable("the store cannot be reached", metadata={"cause": cause})


def told(error: Exception) -> HeadwayError:
    """What a plain command that only reads fails with."""
    return refused(error) if isinstance(error, redis_errors.ResponseError) else unreachable(error)


def checked(reply: Any) -> Any:
    """The reply to such a command, which is raised if it is an error."""
    if isinstance(reply, Exception):
        raise told(reply) from reply
    return reply


def lost(*, was_silent: bool, is_write: bool) -> HeadwayError:
    """A reply that did not come. A call that only reads has no outcome to be unsure of."""
    cause = "SILENT" if was_silent else "RESET"
    if not is_write:
        return StoreUnavailable("the store did not answer", metadata={"cause": cause if was_silent else "REFUSED"})
    return OutcomeUnknown("the store's answer was lost; it may have happened", metadata={"cause": cause})
