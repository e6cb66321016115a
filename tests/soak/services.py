"""Service processes whose tasks, connections and descriptors can be counted from outside."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness import ServiceProcess, processes
from harness.conditions import eventually_sync

_WATCHED = Path(__file__).with_name("watched.py")
MOST_STORE_CONNECTIONS = 16 + 2  # the link keeps what it once opened; two are for hints


@dataclass(frozen=True)
class Holdings:
    """What a process holds besides its memory."""

    tasks: tuple[str, ...]  # their names, or what they do
    callers: int  # connections of clients
    store_connections: int
    other_descriptors: int


class WatchedService(ServiceProcess):
    """A service process that tells its tasks."""

    def launch(self) -> None:
        """Starts the process without waiting for anything."""
        self._tasks = self.log.with_name("tasks.json")
        env = self.env | {"SOAK_TASKS": str(self._tasks)}
        command: list[str | Path] = [sys.executable, _WATCHED, "serve", *self.flags]
        self._process = processes.spawn(command, log=self.log, env=env, stdout=subprocess.PIPE)
        ServiceProcess.live.append(self)

    def holdings(self, store_port: int) -> Holdings:
        """As of now."""
        self._tasks.unlink(missing_ok=True)
        self.signal(signal.SIGUSR1)
        eventually_sync(self._tasks.exists, within=10)
        process = psutil.Process(self.pid)
        here = int(self.address.rpartition(":")[2])
        descriptors = process.num_fds()
        connections = [one for one in process.net_connections("tcp") if one.status == psutil.CONN_ESTABLISHED]
        callers = sum(one.laddr[1] == here for one in connections)
        store = sum(one.raddr[1] == store_port for one in connections)
        tasks = tuple(json.loads(self._tasks.read_text()))
        return Holdings(tasks, callers, store, descriptors - callers - store)
