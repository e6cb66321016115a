"""Starts processes of ours so that none is left behind by a start that fails.

Python makes a process first, and then what it needs to notice its end: a file descriptor, or a thread where the system
has no such descriptors, and on Python 3.11 always. Where that cannot be had the caller is told so, and knows nothing of
the process, which would run on.
"""

from __future__ import annotations

import asyncio
import asyncio.subprocess
import subprocess
from collections.abc import Sequence
from typing import Any

_LOOK_S = 0.05
_LINE_BYTES = 64 * 1024  # that may be read ahead of what a process writes


class _Child(asyncio.subprocess.SubprocessStreamProtocol):
    """What a process writes and is written. One that is not wanted is killed as soon as its pipes are there."""

    is_wanted = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self.is_wanted:
            transport.close()  # which kills the process
            process: subprocess.Popen[bytes] | None = transport.get_extra_info("subprocess")
            if process is not None:
                self._see_end(process)

    def _see_end(self, process: subprocess.Popen[bytes]) -> None:
        """Nobody else does, and until then it counts among the user's processes."""
        if process.poll() is None:
            asyncio.get_running_loop().call_later(_LOOK_S, self._see_end, process)


async def start_child(
    command: Sequence[str], *, stdin: int | None, stdout: int | None, stderr: int | None = None, **how: Any
) -> asyncio.subprocess.Process:
    """As `asyncio.create_subprocess_exec`. Raises OSError where there can be no process, or no file descriptors for it,
    and RuntimeError where there can be no thread that waits for it; then there is no process soon."""
    loop = asyncio.get_running_loop()
    child = _Child(_LINE_BYTES, loop)
    try:
        transport, _ = await loop.subprocess_exec(
            lambda: child, *command, stdin=stdin, stdout=stdout, stderr=stderr, **how
        )
    except BaseException:
        child.is_wanted = False
        raise
    return asyncio.subprocess.Process(transport, child, loop)
