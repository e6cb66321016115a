"""Which Headway is measured: its version stays the same from one release to the next, and its code does not."""

from __future__ import annotations

import hashlib
import subprocess

from bench.peers import places

MEASURED = ("service", "clients")  # nothing else: to write tables, or to commit them, makes it no other one


def _git(*words: str) -> bytes:
    command = ["git", "-C", str(places.ROOT), *words, "--", *MEASURED]
    return subprocess.run(command, capture_output=True, check=True).stdout


def revision() -> str:
    """The last commit that changed it, and a digest of what has been changed since; '' where git does not know."""
    try:
        commit = _git("log", "-1", "--format=%h", "--abbrev=12").decode().strip()
        changes = _git("diff", "--no-ext-diff", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{commit}, changed: {hashlib.sha256(changes).hexdigest()[:8]}" if changes else commit
