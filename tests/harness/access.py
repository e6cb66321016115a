"""A store's user with the least that the service needs, as docs/operations.md gives it."""

import re
from pathlib import Path

import redis

from harness.stores import StoreServer

ROOT = Path(__file__).resolve().parent.parent.parent
_LINE = re.compile(r"^    ACL SETUSER headway on >SECRET .*(?:\n        .*)*", re.MULTILINE)
USER, PASSWORD = "headway", "s3cret"


def rules(*, prefix: str = "__pressure__") -> list[str]:
    """What stands behind `ACL SETUSER headway`, for keys under this prefix."""
    match = _LINE.search((ROOT / "docs/operations.md").read_text())
    assert match, "docs/operations.md gives no ACL SETUSER line"
    words = match[0].split()[3:]
    return [word.replace("__pressure__", prefix).replace("SECRET", PASSWORD) for word in words]


def allow(client: redis.Redis, *, prefix: str = "__pressure__", user: str = USER) -> None:
    """Makes the user."""
    command: list[str] = ["ACL", "SETUSER", user, "reset", *rules(prefix=prefix)]
    client.execute_command(*command)  # type: ignore[no-untyped-call] # redis-py leaves it so


def url_of(server: StoreServer, *, user: str = USER) -> str:
    """Of the server, for this user."""
    return f"redis://{user}:{PASSWORD}@127.0.0.1:{server.port}/0"


def denied(client: redis.Redis, *, user: str = USER) -> list[str]:
    """What was denied to this user, as far as the server remembers."""
    return [str(entry["object"]) for entry in client.acl_log() if entry["username"] == user]
