"""`headwayd` as it is, that tells on SIGUSR1 which tasks it has: their names as JSON, in the file SOAK_TASKS."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from headwayd.cli import main


def tell(_number: int, _frame: object) -> None:
    """Runs between two steps of the loop."""
    names = sorted(task.get_name() for task in asyncio.all_tasks())
    path = Path(os.environ["SOAK_TASKS"])
    path.with_suffix(".new").write_text(json.dumps(names))
    path.with_suffix(".new").rename(path)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, tell)
    sys.argv[0] = "headwayd"
    main()
