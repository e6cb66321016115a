"""Puts the command line together: global options, and how a command runs against the service and ends."""

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from headway._client import Client, connect
from headway.cli._exits import ExitCode, exit_code, help_text
from headway.cli._output import Output
from headway.cli._secrets import Secrets
from headway.core.connecting import ADDRESS_VARIABLE, DEFAULT_TARGET
from headway.core.error import HeadwayError

app = typer.Typer(
    name="headway",
    help="Queues that tell everyone where they stand: put, get and work on messages from the shell.",
    epilog=help_text(),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What the global options said."""

    address: str | None
    output: Output
    secrets: Secrets


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"headway {version('headway')}")
        raise typer.Exit


@app.callback()
def _global_options(  # noqa: PLR0917 - typer calls it by name
    context: typer.Context,
    address: Annotated[
        str | None,
        typer.Option(
            "--address", "-a", envvar=ADDRESS_VARIABLE, help=f"The service's address; default {DEFAULT_TARGET}."
        ),
    ] = None,
    ca: Annotated[
        str | None,
        typer.Option(
            envvar="HEADWAY_CA", help="TLS: a PEM file with the authorities to trust, or `system` for this machine's."
        ),
    ] = None,
    cert: Annotated[
        Path | None, typer.Option(envvar="HEADWAY_CERT", help="TLS: a PEM file with your certificate.")
    ] = None,
    key: Annotated[Path | None, typer.Option(envvar="HEADWAY_KEY", help="TLS: a PEM file with its key.")] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            envvar="HEADWAY_TOKEN_FILE", help="A file with your bearer token; HEADWAY_TOKEN may hold the token itself."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line, for scripts.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Tell the version.")
    ] = False,
) -> None:
    secrets = Secrets(ca=ca, cert=cert, key=key, token_file=token_file)
    context.obj = Session(address=address, output=Output(as_json=as_json), secrets=secrets)


def perform(context: typer.Context, action: Callable[[Client, Output], Awaitable[int | None]]) -> None:
    """Runs a command's action with a connected client; ends the process with its exit code, None being OK."""
    session: Session = context.obj
    logging.basicConfig(stream=sys.stderr, format="headway: %(message)s", level=logging.WARNING)

    try:
        code = asyncio.run(_perform(session, action)) or ExitCode.OK
    except HeadwayError as error:
        session.output.failure(error)
        code = exit_code(error)
    except BrokenPipeError:
        session.output.forget_stdout()
        code = ExitCode.ERROR
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    except (OSError, ValueError) as error:
        session.output.notice(str(error))
        code = ExitCode.ERROR
    raise typer.Exit(code)


async def _perform(session: Session, action: Callable[[Client, Output], Awaitable[int | None]]) -> int | None:
    """Runs the action; SIGTERM cancels it, so that it leaves nothing behind, not even at the terminal."""
    task = asyncio.current_task()
    assert task is not None
    is_terminated = False

    def terminate() -> None:
        nonlocal is_terminated
        is_terminated = True
        task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
    try:
        credentials, token = session.secrets.credentials(), session.secrets.token()
        try:
            client = connect(session.address, credentials=credentials, token=token)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--address") from None
        async with client:
            return await action(client, session.output)
    except asyncio.CancelledError:
        if is_terminated:
            return 128 + signal.SIGTERM
        raise


from headway.cli import (  # noqa: E402, F401 - each registers its commands with `app`
    _dead,
    _get,
    _leased,
    _messages,
    _policies,
    _put,
    _queues,
    _stand,
    _top,
    _watch,
    _work,
)
