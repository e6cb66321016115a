"""The command that watches messages: live places, bars and outcomes at a terminal, a line per change elsewhere."""

import time
from collections.abc import Callable, Sequence
from contextlib import aclosing, nullcontext
from datetime import timedelta
from typing import Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headway._client import Client
from headway._places import Finished, Leased, Outcome, Update, Waiting
from headway.cli._app import app, perform
from headway.cli._arguments import MessageIds, QueueName
from headway.cli._exits import ExitCode
from headway.cli._output import Output, printable
from headway.cli._telling import as_record, drawing, in_words

_BAR_COLUMNS = 24
_STYLES = {Outcome.DONE: "green", Outcome.UNKNOWN: "yellow"}  # the others are bad news


@app.command()
def watch(
    context: typer.Context,
    queue: QueueName,
    ids: MessageIds,
    attended: Annotated[
        bool, typer.Option("--attended", help="Withdraw those that still wait when this command ends.")
    ] = False,
) -> None:
    """Watch messages until each has ended: their places in line, how far the work is, their outcomes.

    Draws at a terminal; elsewhere writes a line whenever something changed. Goes on when the service is away for a
    while. Exit code 0: all are done; 9: one is dead, withdrawn, expired or deleted; 3: one is not known.
    """

    async def action(client: Client, output: Output) -> ExitCode:
        console = Console()
        view = View(ids, room=lambda: console.height - 1)
        is_drawn = console.is_terminal and not output.as_json
        updates = client.queue(queue).watch(*ids, attended=attended)
        async with aclosing(updates):
            with drawing(console, view.picture) if is_drawn else nullcontext():
                async for update in updates:
                    is_news = view.note(update)
                    if output.as_json:
                        output.record(as_record(update))
                    elif is_news and not is_drawn:
                        output.line(f"{printable(update.id)}: {in_words(update)}")
                view.is_over = True
        return view.code

    perform(context, action)


class View:
    """What was told last of each message, and a picture of it."""

    def __init__(
        self, ids: Sequence[str], *, room: Callable[[], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._told: dict[str, Update | None] = dict.fromkeys(ids)
        self._told_at: dict[str, float] = {}  # by our clock, in seconds
        self._clock = clock
        self._room = room  # how many lines there are
        self._farthest: dict[str, int] = {}  # the highest position of each
        self.is_over = False  # the last picture shows all of them, however many

    @property
    def code(self) -> ExitCode:
        """What the outcomes make of the command."""
        codes = [
            ExitCode.OK if end is Outcome.DONE else ExitCode.NOT_FOUND if end is Outcome.UNKNOWN else ExitCode.UNDONE
            for end in (told.outcome for told in self._told.values() if isinstance(told, Finished))
        ]
        return max(codes, default=ExitCode.OK)

    def note(self, update: Update) -> bool:
        """Notes what was told; whether it reads otherwise than before."""
        before = self._told.get(update.id)
        self._told_at[update.id], self._told[update.id] = self._clock(), update
        if isinstance(update, Waiting):
            self._farthest[update.id] = max(update.position, self._farthest.get(update.id, 0))
        return before is None or in_words(before) != in_words(update)

    def picture(self) -> RenderableType:
        """All messages, or, while it goes on and there are more than there is room for, some that have not ended."""
        told = list(self._told.items())
        most = max(1, self._room() - 1)
        left_out = 0
        if not self.is_over and len(told) > most:
            shown = [each for each in told if not isinstance(each[1], Finished)][:most]
            left_out = len(told) - len(shown)
            told = shown
        table = Table.grid(padding=(0, 2))
        table.add_column(overflow="fold")
        table.add_column(width=_BAR_COLUMNS)
        table.add_column(overflow="fold")
        for message_id, update in told:
            table.add_row(Text(printable(message_id), "bold"), *self._row(update))
        return Group(table, Text(f"and {left_out} more", "dim")) if left_out else table

    def _row(self, update: Update | None) -> tuple[RenderableType, Text]:
        match update:
            case None:
                return "", Text("asking …", "dim")
            case Waiting():
                way = max(self._farthest[update.id], 1)
                bar = ProgressBar(total=way, completed=way - update.position, width=_BAR_COLUMNS, complete_style="cyan")
                return bar, Text("you are " + in_words(update))
            case Leased():
                total = None if update.progress is None else 1.0  # None: it pulses
                return ProgressBar(total=total, completed=update.progress or 0.0, width=_BAR_COLUMNS), Text(
                    in_words(update)
                )
            case Finished():
                style = _STYLES.get(update.outcome, "red")
                full = ProgressBar(total=1, completed=1, width=_BAR_COLUMNS, finished_style=style)
                return full if update.outcome is Outcome.DONE else "", Text(in_words(update), style)
            case _:
                age = timedelta(seconds=self._clock() - self._told_at[update.id])
                return "", Text(in_words(update, age=age), "dim")
