"""`headwayd` as it is, that tells on SIGUSR1 which tasks it has, as JSON in the file SOAK_TASKS: their names, or what
those do that have none."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from headwayd.cli import main


def called(task: asyncio.Task[object]) -> str:
    """Its name, without the number that asyncio gives."""
    name = task.get_name()
    return str(getattr(task.get_coro(), "__qualname__", "Task")) if name.startswith("Task-") else name


def tell(_number: int, _frame: object) -> None:
    """Runs between two steps of the loop."""
    names = sorted(called(task) for task in asyncio.all_tasks())
    path = Path(os.environ["SOAK_TASKS"])
    path.with_suffix(".new").write_text(json.dumps(names))
    path.with_suffix(".new").rename(path)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, tell)
    sys.argv[0] = "headwayd"
    main()
