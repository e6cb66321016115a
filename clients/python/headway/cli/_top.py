"""The command that shows all queues at once, as their numbers change."""

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway._client import Client
from headway.cli._app import app, perform
from headway.cli._arguments import parse_span
from headway.cli._board import COLUMNS, Board, Order, Row
from headway.cli._output import Output, printable
from headway.cli._telling import drawing

_INTERVAL = timedelta(seconds=1)
_QUIT_KEYS = frozenset(b"qQ")
_FRAME_LINES = 5  # of the picture, beside the queues


@app.command()
def top(
    context: typer.Context,
    prefix: Annotated[str, typer.Option(help="Only queues whose names begin with this.")] = "",
    sort: Annotated[
        Order, typer.Option(help="What comes first: the most of this; rate is puts and acks.")
    ] = Order.LENGTH,
    interval: Annotated[
        timedelta | None,
        typer.Option(
            "--interval", metavar="SPAN", parser=parse_span, help="A queue's numbers change at most so often."
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print them once, and end.")] = False,
) -> None:
    """Show all queues live, until q is pressed. Where there is no terminal: once, as a plain table.

    With --json: a line for each queue whenever its numbers change, or, with --once, a line for each queue.
    """

    async def action(client: Client, output: Output) -> None:
        console = Console()
        board = Board(client, prefix, interval=_INTERVAL if interval is None else interval)
        if once or not (console.is_terminal or output.as_json):
            await board.look()
            for row in board.rows(sort) if output.as_json else ():
                output.record(row.as_record())
            if not output.as_json:
                output.table(COLUMNS, [row.cells() for row in board.rows(sort)])
            return
        if output.as_json:
            board.on_news = lambda row: output.record(row.as_record())
            await board.follow()
            return
        with drawing(console, lambda: _picture(board, sort, console.height), screen=True):
            await _until_quit(board)

    perform(context, action)


async def _until_quit(board: Board) -> None:
    """Follows the queues until q is pressed."""
    quits = asyncio.Event()
    following = asyncio.create_task(board.follow())
    quitting = asyncio.create_task(quits.wait())
    try:
        with _keys(quits):
            await asyncio.wait([following, quitting], return_when=asyncio.FIRST_COMPLETED)
        if following.done():
            following.result()
    finally:
        for task in (following, quitting):
            task.cancel()
        await asyncio.wait([following, quitting])


@contextmanager
def _keys(quits: asyncio.Event) -> Iterator[None]:
    """Sets the event when q is pressed, if there is somebody to press it."""
    if not sys.stdin.isatty():
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    loop = asyncio.get_running_loop()

    def read() -> None:
        if _QUIT_KEYS & set(os.read(terminal, 64)):
            quits.set()

    tty.setcbreak(terminal)
    loop.add_reader(terminal, read)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _picture(board: Board, order: Order, height: int) -> RenderableType:
    """The queues as a table that fits, and a line below it."""
    rows = board.rows(order)
    room = max(1, height - _FRAME_LINES)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=True)
    for name in COLUMNS:
        is_text = name in {"queue", "state"}
        table.add_column(
            name, justify="left" if is_text else "right", no_wrap=True, ratio=1 if name == "queue" else None
        )
    for row in rows[:room]:
        table.add_row(*_cells(row))
    left_out = f"and {len(rows) - room} more; " if len(rows) > room else ""
    count = f"{len(rows)} queues; " if board.is_known else "asking …; "
    return Group(table, Text(f"{count}{left_out}q: quit", "dim"))


def _cells(row: Row) -> Sequence[Text]:
    style = "dim" if not row.queue.counts.length + row.queue.counts.leased else ""
    return [Text(printable(str(cell)), style) for cell in row.cells()]
