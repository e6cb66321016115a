"""Makes first-job.svg anew: starts a service on an embedded store of its own, runs commands, draws what they print."""
# ruff: noqa: INP001, S603, S607 - a script, not a package; the programs it starts are those that it names

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
COLUMNS = 96
# rich's picture without its fonts from elsewhere: every reader has a monospaced one.
PICTURE = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace("Fira Code, ", "")
COMMANDS = (
    "headway create files --bound 1000 --limit 4 --max-attempts 5",
    "ls proto/headway/v1/*.proto | headway put files --lines",
    "headway put files README.md --id readme",
    "headway put files README.md --id readme --on-duplicate keep",
    "headway list",
    "headway work files -j 4 --drain -- sh -c 'sha256sum \"$(cat)\" | cut -c 1-16,65-'",
    "headway describe files | grep -E 'length|leased|acked|accepted|oldest'",
)


def run_in_terminal(command: str, environment: dict[str, str]) -> str:
    """What the command prints to a terminal of COLUMNS columns."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    process = subprocess.Popen(
        ["bash", "-c", command], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer
    )
    os.close(writer)
    printed = b""
    while True:
        try:
            chunk = os.read(reader, 65536)
        except OSError:  # the last writer has closed
            break
        if not chunk:
            break
        printed += chunk
    if process.wait() != 0:
        sys.exit(f"{command} ended with {process.returncode}\n{printed.decode()}")
    return printed.decode().replace("\r\n", "\n")


def main() -> None:
    """Runs the commands in order and writes the picture beside this file."""
    binaries = Path(sys.executable).parent
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWAY_", "REDIS_"))}
    environment |= {"PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}", "TERM": "xterm-256color"}
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:
        command = [str(binaries / "headwayd"), "serve", "--listen", "127.0.0.1:0", "--data-dir", folder]
        service = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            assert service.stdout is not None
            first_line = service.stdout.readline()  # headwayd VERSION serving on ADDRESS (store: …)
            environment["HEADWAY_ADDRESS"] = first_line.partition(" serving on ")[2].split(" ")[0].rstrip(",")
            for each in COMMANDS:
                console.print(Text.assemble(("$ ", "bold green"), (each, "bold")), soft_wrap=True)
                console.print(Text.from_ansi(run_in_terminal(each, environment)), soft_wrap=True)
        finally:
            service.terminate()
            service.wait(30)
    console.save_svg(str(HERE / "first-job.svg"), title="headway", code_format=PICTURE)


if __name__ == "__main__":
    main()
