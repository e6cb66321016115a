"""The command line: `headwayd serve | check | config | version`.

Exit codes: 0 fine; 1 it cannot be done (the store, an address, a service that does not serve); 2 wrong usage or
settings.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, NoReturn

import typer

from headwayd import __version__
from headwayd.access.tls import TlsFiles
from headwayd.access.watched import AccessFailed
from headwayd.config import reference
from headwayd.config.names import flag_of
from headwayd.config.settings import BadSettings, Settings
from headwayd.config.values import parse_span

cli = typer.Typer(
    name="headwayd",
    help="Headway's service: queues that tell everyone where they stand.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _with_setting_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command one flag per setting. They are read as text: `Settings` knows types and ranges."""

    def wrapped(**arguments: Any) -> None:
        flags = {name: arguments.pop(name) for name in list(arguments) if name in Settings.model_fields}
        command(flags, **arguments)

    def parameter(name: str) -> inspect.Parameter:
        field = Settings.model_fields[name]
        kind: Any = str | None
        option = typer.Option(flag_of(name), help=field.description, show_default=False)
        if field.annotation is bool:
            kind = bool | None
            option = typer.Option(
                f"{flag_of(name)}/--no-{name.replace('_', '-')}", help=field.description, show_default=False
            )
        elif name == "listen":
            kind = list[str] | None
        annotation = Annotated[kind, option]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    own = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for each in list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    ]
    parameters = [*own, *map(parameter, Settings.model_fields)]
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {each.name: each.annotation for each in parameters}
    wrapped.__doc__ = command.__doc__
    wrapped.__name__ = command.__name__
    return wrapped


def _load(flags: dict[str, Any]) -> Settings:
    flags["listen"] = flags.get("listen") or None  # not given is an empty list
    try:
        return Settings.load(flags)
    except BadSettings as error:
        _fail(str(error), code=2)


def _fail(text: str, *, code: int) -> NoReturn:
    for line in text.splitlines():
        print(f"headwayd: {line}", file=sys.stderr)
    raise typer.Exit(code)


@cli.command()
@_with_setting_flags
def serve(flags: dict[str, Any]) -> None:
    """Serve until SIGTERM or Ctrl-C. Prints one line on stdout when it is ready."""
    settings = _load(flags)
    run, start_errors = _way_to_run(settings)
    try:
        run(settings, announce=lambda line: print(line, flush=True))
    except start_errors as error:
        _fail(str(error), code=1)


def _way_to_run(settings: Settings) -> tuple[Callable[..., None], tuple[type[Exception], ...]]:
    """What serves, and why its start may fail. Imported late: the other commands need neither gRPC nor Redis."""
    if settings.workers > 1:
        from headwayd import supervisor  # noqa: PLC0415

        return supervisor.run, supervisor.START_ERRORS
    from headwayd import app  # noqa: PLC0415

    return app.run, app.START_ERRORS


@cli.command()
def check(
    address: Annotated[
        str | None, typer.Argument(help="HOST:PORT or unix:PATH. Default: where `serve` would listen.")
    ] = None,
    timeout: Annotated[str, typer.Option(help="How long to wait for the answer.")] = "2s",
    ready: Annotated[bool, typer.Option("--ready", help="Ask also whether its store can be counted on.")] = False,
) -> None:
    """Ask a running service whether it serves. Exits with 0 if it does, 1 if not. With the service's own settings: its
    certificate is the one that is trusted, and shown where clients must show one."""
    from headwayd.rpc.health_check import check as ask  # noqa: PLC0415

    try:
        within = parse_span(timeout)
    except ValueError as error:
        _fail(f"--timeout: {error}", code=2)
    assert isinstance(within, timedelta)
    # Whoever asks opens nothing: what `serve` was allowed by a flag need not be said again.
    settings = _load({"insecure": "true"})
    where = address or settings.listen[0]
    try:
        tls = (
            settings.tls_cert
            and settings.tls_key
            and TlsFiles(cert=settings.tls_cert, key=settings.tls_key, client_ca=settings.tls_client_ca)
        )
    except AccessFailed as error:
        _fail(str(error), code=1)
    if not asyncio.run(ask(where, within, tls or None, service="readiness" if ready else "")):
        _fail(f"{where} is not ready" if ready else f"{where} does not serve", code=1)
    print(f"{where} is ready" if ready else f"{where} serves")


@cli.command()
@_with_setting_flags
def config(
    flags: dict[str, Any],
    is_reference: Annotated[
        bool, typer.Option("--reference", help="Print the reference of all settings instead.")
    ] = False,
) -> None:
    """Show the settings in force, and where each comes from; secrets are masked."""
    if is_reference:
        print(reference.markdown(), end="")
        return
    rows = reference.effective(_load(flags), flags)
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for name, value, origin in rows:
        print(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {origin}".rstrip())


@cli.command()
def version() -> None:
    """Print the version."""
    print(f"headwayd {__version__}")


def main() -> None:
    """The entry point."""
    cli(prog_name="headwayd")
