"""Makes watch.svg anew: a service of its own, a worker, and what `headway watch` draws of three messages."""
# ruff: noqa: INP001 - a script, not a package

import asyncio
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

import headway
from headway.cli._watch import View

HERE = Path(__file__).resolve().parent
COLUMNS = 84
IDS = ("cover", "page-1", "page-2")
# rich's picture without its fonts from elsewhere: every reader has a monospaced one.
PICTURE = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace("Fira Code, ", "")


class Scene:
    """The command's view, fed by a real watch, and pictures of it taken when it shows something."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._view = View(IDS, room=lambda: 40)
        self._told: dict[str, headway.Update] = {}
        self._changed = asyncio.Condition()

    async def watch(self, queue: headway.Queue) -> None:
        """Follows the messages to their ends."""
        async for update in queue.watch(*IDS):
            async with self._changed:
                self._view.note(update)
                self._told[update.id] = update
                self._changed.notify_all()

    async def draw(self, claim: Callable[[dict[str, headway.Update]], bool]) -> None:
        """Draws what is shown once the claim holds."""
        async with asyncio.timeout(30), self._changed:
            await self._changed.wait_for(lambda: len(self._told) == len(IDS) and claim(self._told))
        self._console.print(self._view.picture())
        self._console.print()


async def play(address: str, console: Console) -> None:
    """Puts three messages, works on them, and draws three moments of that."""
    async with headway.connect(address) as client:
        queue = client.queue("render")
        await queue.create(limit=2)
        await queue.put_many([headway.Message(id=name) for name in IDS])
        scene = Scene(console)
        async with asyncio.TaskGroup() as group:
            group.create_task(scene.watch(queue))
            await scene.draw(lambda told: all(isinstance(each, headway.Waiting) for each in told.values()))
            async with queue.lease() as first, queue.lease() as second:
                assert first is not None
                assert second is not None
                await first.progress(0.7, "upload")
                await second.progress(0.2, "rasterise")
                await scene.draw(
                    lambda told: (
                        getattr(told["page-2"], "position", 0) == 1 and getattr(told["page-1"], "progress", 0) == 0.2
                    )
                )
                await first.ack(b"3 files")
            async with queue.lease() as third:
                assert third is not None
                await third.progress(0.9, "upload")
                await scene.draw(
                    lambda told: (
                        getattr(told["page-2"], "progress", 0) == 0.9 and isinstance(told["page-1"], headway.Finished)
                    )
                )


def main() -> None:
    """Plays the scene and writes the picture beside this file."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "bold green"), ("headway watch render " + " ".join(IDS), "bold")))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWAY_", "REDIS_"))}
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:
        command = [str(Path(sys.executable).parent / "headwayd"), "serve", "--listen", "127.0.0.1:0"]
        service = subprocess.Popen(  # noqa: S603 - our own service
            [*command, "--data-dir", folder],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert service.stdout is not None
            first_line = service.stdout.readline()  # headwayd VERSION serving on ADDRESS (store: …)
            asyncio.run(play(first_line.partition(" serving on ")[2].split(" ")[0].rstrip(","), console))
        finally:
            service.terminate()
            service.wait(30)
    console.save_svg(str(HERE / "watch.svg"), title="headway watch", code_format=PICTURE, unique_id="headway-watch")


if __name__ == "__main__":
    main()
