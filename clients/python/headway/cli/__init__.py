"""The command line `headway`: starts it, or says what is missing."""

import os
import sys

from headway.cli._streams import make_usable


def main() -> None:
    """Runs the command line; exits with one of the codes of `headway --help`."""
    make_usable()
    try:
        import rich  # noqa: F401, PLC0415 - an extra, which may be missing
        import typer  # noqa: F401, PLC0415
    except ImportError as error:
        sys.exit(f"headway: the command line needs {error.name}: install headway[cli]")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # gRPC reads it once; its notices would stand among ours
    from headway.cli._app import app  # noqa: PLC0415 - imports the extra

    app(prog_name="headway")
