"""Imports every module of `headwayd` and lets a store compile every script: `python -m mutants.sound REDIS_URL`.

Fails if a mutant is not a changed program but none at all.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys

import redis

import headwayd
from headwayd.store import scripts


def main(url: str) -> None:
    """Ends with the error that it meets."""
    for module in pkgutil.walk_packages(headwayd.__path__, "headwayd."):
        if not module.name.endswith(("__main__", ".tether")):
            importlib.import_module(module.name)
    with redis.Redis.from_url(url) as client:
        for script in scripts.all_scripts().values():
            client.script_load(script.text)


if __name__ == "__main__":
    main(sys.argv[1])
