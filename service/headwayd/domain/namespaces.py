"""Namespaces: names of queues that belong to different people and never meet.

Inside the service a queue's name is *qualified*: that of its namespace, SEPARATOR, and the name that its callers know.
SEPARATOR is a control character, which names from outside must not have, so nobody can name another namespace's queue.
In the default namespace, and without any, the two names are the same.
"""

from __future__ import annotations

import re

SEPARATOR = "\x1f"
# What the default namespace is called where one has to be named. Its queues have no other names than before.
DEFAULT = "default"
# Part of keys: no colon, which ends the prefix there, and nothing that a pattern takes for more than itself.
_ACCEPTABLE = re.compile(r"[a-z0-9]([a-z0-9_.-]{0,61}[a-z0-9])?")


def refusal_of(namespace: str) -> str | None:
    """Why `namespace` cannot be a namespace's name, or None if it can."""
    if _ACCEPTABLE.fullmatch(namespace):
        return None
    return "must be 1 to 63 small letters, digits, '-', '_' or '.', with a letter or digit at both ends"


def qualifier(namespace: str) -> str:
    """What stands before the names of its queues inside the service; "" for the default namespace."""
    return "" if namespace == DEFAULT else namespace + SEPARATOR


def split(queue: str) -> tuple[str, str]:
    """The namespace and the name that callers know."""
    namespace, separator, name = queue.rpartition(SEPARATOR)
    return (namespace, name) if separator else (DEFAULT, name)


def shown(queue: str) -> str:
    """For people who see all namespaces, in logs and traces: `namespace/name`."""
    return queue.replace(SEPARATOR, "/", 1)


def bare(text: str, qualifier: str) -> str:
    """A text for callers: their queues by the names that they know, also where one is quoted as Python quotes it."""
    return text.replace(qualifier, "").replace(repr(qualifier)[1:-1], "")
