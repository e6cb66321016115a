"""Real `headwayd serve` processes."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from harness import processes
from harness.template import Forked, Template

_READY_S = 20
_LINE = re.compile(r"^headwayd \S+ serving on (?P<addresses>.*) \(store: (?P<store>.*)\)$")
# Settings that a developer's shell may hold and that no test wants.
_FOREIGN = ("HEADWAY_", "REDIS_", "PRESSURE_")


class ServiceProcess:
    """One service process with its own environment. Its log is shown when a test fails."""

    live: ClassVar[list["ServiceProcess"]] = []
    template: ClassVar[Template | None] = None  # what services are forked from; None: they start as users start them

    def __init__(self, folder: Path, *, env: Mapping[str, str], flags: tuple[str, ...] = ()) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        self.env = clean | {"HEADWAY_LISTEN": "127.0.0.1:0", "HEADWAY_LOG_LEVEL": "debug"} | dict(env)
        self.flags = flags
        self.log = folder / "headwayd.log"
        self.address = ""
        self.addresses: list[str] = []
        self.http = ""  # the URL of its HTTP port, if it has one
        self.store = ""  # as the first line tells it
        self._process: subprocess.Popen[bytes] | Forked | None = None

    @property
    def pid(self) -> int:
        """Of the running service."""
        assert self._process is not None
        return self._process.pid

    def launch(self) -> None:
        """Starts the process without waiting for anything."""
        program = Path(sys.executable).with_name("headwayd")
        command = [str(program), "serve", *self.flags]
        if self.template is not None and self.template.serves(self.env):
            self._process = self.template.start(command, log=self.log, env=self.env)
        else:
            command.insert(0, sys.executable)
            self._process = processes.spawn(command, log=self.log, env=self.env, stdout=subprocess.PIPE)
        ServiceProcess.live.append(self)

    def start(self) -> "ServiceProcess":
        """Starts the process and waits for the line that tells its address."""
        self.launch()
        line = self._first_line()
        match = _LINE.match(line)
        assert match, f"unexpected first line {line!r}\n{processes.tail(self.log)}"
        self.addresses = match["addresses"].split(", ")
        self.address, self.store = self.addresses[0], match["store"]
        self.http = next((each for each in self.addresses if each.startswith("http")), "")
        return self

    def _first_line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        deadline, read = time.monotonic() + _READY_S, b""
        while not read.endswith(b"\n"):
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._process.stdout], [], [], max(left, 0))
            assert ready, f"not serving within {_READY_S} s\n{processes.tail(self.log)}"
            chunk = os.read(self._process.stdout.fileno(), 4096)
            assert chunk, f"ended with {self._process.wait(5)} before it served\n{processes.tail(self.log)}"
            read += chunk
        return read.decode().splitlines()[0]

    def wait(self, *, within: float = 15) -> int:
        """The exit code of a process that ends by itself."""
        assert self._process is not None
        return self._process.wait(within)

    def signal(self, number: int) -> None:
        """Sends a signal and waits for nothing."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """SIGKILL, and the exit code."""
        return self._end(signal.SIGKILL)

    def end(self) -> None:
        """For when nobody looks at it any more: at once, if no other process ends with it."""
        is_alone = "HEADWAY_REDIS_URL" in self.env and "HEADWAY_WORKERS" not in self.env and not self.flags
        self._end(signal.SIGKILL if is_alone else signal.SIGTERM)

    def _end(self, number: int) -> int:
        if self in ServiceProcess.live:
            ServiceProcess.live.remove(self)
        return processes.stop(self._process, number) if self._process else 0
