"""A process that has loaded all that a service loads, and becomes one whenever it is asked: it forks.

Nine tenths of a service's start are loading and putting scripts together, the same each time. The fork is a process of
its own in all that tests look at (arguments, environment, working folder, session, output, signals, exit code), except
for its command line in the process table. gRPC bears it: loading it starts no thread, and none is used before
the fork. Linux only. Tests about starting start services as users do, marked `true_start`.

The tests' side is `Template`; the process runs this file, with a socket to that as its standard input.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Final

# Whoever sets these otherwise than the tests' own environment is not served by what was loaded in that.
_READ_WHILE_LOADING: Final = ("GRPC_", "LANG", "LC_", "LD_", "MALLOC_", "OTEL_P", "PYTHON", "TZ")
_LOADED_S = 60.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_MOST = 1 << 20  # bytes of a request


@cache
def can_fork() -> bool:
    """Whether this system has what a template needs: descriptors of processes, as Linux has since 5.3."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


class Forked:
    """A service process by its template, with what `subprocess.Popen` offers of it."""

    def __init__(self, args: Sequence[str], pid: int, *, status: int, stdout: IO[bytes]) -> None:
        self.args = args
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        """The exit code (negative: the signal that ended it), None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The same, waited for. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        if self.returncode is None:
            ready, _, _ = select.select([self._status], [], [], timeout)
            if not ready:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            # Nothing to read is the template's end, which no process of it outlives.
            self.returncode = int(os.read(self._status, 16) or -signal.SIGTERM)
            os.close(self._status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing happens if it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Template:
    """The tests' side. The process starts with the first request, and ends with `close` or the tests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    @staticmethod
    def serves(env: Mapping[str, str]) -> bool:
        """Whether a service of this environment is what the template would become."""
        read = [{name: of[name] for name in of if name.startswith(_READ_WHILE_LOADING)} for of in (env, os.environ)]
        return can_fork() and read[0] == read[1]

    def start(self, command: Sequence[str], *, log: Path, env: Mapping[str, str]) -> Forked:
        """Runs a Python program with arguments; stderr goes to `log`. Waits for the fork, and for nothing it does."""
        request = json.dumps({"command": command, "env": dict(env), "cwd": str(Path.cwd())}).encode()
        ours, theirs = os.pipe(), os.pipe()  # its output, its exit code
        with log.open("ab") as sink, self._lock:
            asked = self._asked()
            try:
                socket.send_fds(asked, [request], [ours[1], sink.fileno(), theirs[1]])
                answer = asked.recv(16)
            finally:
                os.close(ours[1])
                os.close(theirs[1])
        assert answer, "the template has ended"
        return Forked(command, int(answer), status=theirs[0], stdout=os.fdopen(ours[0], "rb"))

    def _asked(self) -> socket.socket:
        if self._socket is None:
            self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._socket.settimeout(_LOADED_S)
            with its:
                command = [sys.executable, "-P", __file__]
                self._process = subprocess.Popen(command, stdin=its.fileno(), start_new_session=True)
        return self._socket

    def close(self) -> None:
        """Ends the process. Services that still run are told to stop."""
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.wait(_LOADED_S)
            self._socket = self._process = None


def _load() -> None:
    import headwayd

    for module in pkgutil.walk_packages(headwayd.__path__, "headwayd."):
        importlib.import_module(module.name)
    importlib.import_module("headwayd.store.scripts").all_scripts()
    # Else each fork's first look for cycles would copy the memory of all this.
    gc.collect()
    gc.freeze()


def _become(request: dict[str, object], descriptors: Sequence[int], parent: int) -> None:
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel was asked
        os._exit(0)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, descriptor in enumerate((null, *descriptors[:2])):
        os.dup2(descriptor, number)
    for descriptor in (null, *descriptors):
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[call-overload]
    os.chdir(str(request["cwd"]))


def _serve(requests: socket.socket) -> list[str] | None:
    """Forks at each request and tells who has ended. Returns the command in a fork, None when nobody asks any more."""
    itself, told = os.getpid(), select.poll()
    running: dict[int, tuple[int, int]] = {}  # by pid descriptor: the pid, and where to tell its exit code
    told.register(requests, select.POLLIN)
    while True:
        for descriptor, _ in told.poll():
            if descriptor != requests.fileno():
                pid, status = running.pop(descriptor)
                _, how = os.waitpid(pid, 0)
                with contextlib.suppress(BrokenPipeError):  # nobody waits for it
                    os.write(status, str(os.waitstatus_to_exitcode(how)).encode())
                told.unregister(descriptor)
                os.close(descriptor)
                os.close(status)
                continue
            packed, descriptors, _, _ = socket.recv_fds(requests, _MOST, 3)
            if not packed:
                return None
            request = json.loads(packed)
            if (pid := os.fork()) == 0:
                os.close(requests.detach())
                for other, (_, status) in running.items():
                    os.close(other)
                    os.close(status)
                _become(request, descriptors, itself)
                return list(request["command"])
            for own in descriptors[:2]:
                os.close(own)
            looked_at = os.pidfd_open(pid)
            running[looked_at] = pid, descriptors[2]
            told.register(looked_at, select.POLLIN)
            requests.send(str(pid).encode())


def main() -> None:
    """What the process does."""
    requests = socket.socket(fileno=os.dup(0))
    _load()
    command = _serve(requests)
    if command is not None:
        sys.argv[:] = command
        sys.path.insert(0, str(Path(command[0]).parent))
        try:
            runpy.run_path(command[0], run_name="__main__")
        except SystemExit as end:
            # Not by way of the interpreter's own end, which would touch, so copy, the memory of all that was loaded.
            if isinstance(end.code, int):
                os._exit(end.code)
            raise


if __name__ == "__main__":
    main()
