"""Real store servers: the valkey-server that the service brings along, and Redis 7 from the path."""

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from harness import processes
from harness.conditions import eventually_sync
from headwayd.store.data_folder import REWRITE_FROM
from headwayd.store.embedded import find_binary

KINDS = ("valkey", "redis")


def program(kind: str) -> Path:
    """The server's program; skips the test where it is missing, fails it under CI."""
    if kind == "valkey":
        return find_binary()
    found = shutil.which("redis-server")
    if found is None:
        reason = "redis-server is not on the path"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return Path(found)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class StoreServer:
    """One server process on 127.0.0.1 and on a unix socket, with its own folder.

    It can be killed, paused, and started again on the same port, with the same data if it is `durable`.
    """

    def __init__(
        self,
        kind: str,
        folder: Path,
        *,
        durable: bool = False,
        options: tuple[str, ...] = (),
        port: int | None = None,
        tls_port: int = 0,
        password: str | None = None,
    ) -> None:
        self.kind = kind
        self.folder = folder
        self.durable = durable
        self.options = options
        self.program = program(kind)
        self.port = free_port() if port is None else port
        self.tls_port = tls_port
        self.password = password
        self.socket = folder / "s"
        self.log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Over TCP."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def known_port(self) -> int:
        """By which servers that stand in for each other know it."""
        return self.tls_port or self.port

    @property
    def unix_url(self) -> str:
        """Over the unix socket."""
        return f"unix://{self.socket}?db=0"

    @property
    def pid(self) -> int:
        """Of the running server."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts it and waits until it answers (loading its data included)."""
        command: list[str | Path] = [self.program, "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--unixsocket", self.socket, "--dir", self.folder, "--save", ""]
        command += ["--appendonly", "yes" if self.durable else "no", "--daemonize", "no"]
        command += ["--auto-aof-rewrite-min-size", REWRITE_FROM]
        command += ["--maxmemory-policy", "noeviction", *self.options]
        self._process = processes.spawn(command, log=self.log)
        with self.client() as client:
            eventually_sync(lambda: self._answers(client), within=20)

    def _answers(self, client: redis.Redis) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, processes.tail(self.log)
        try:
            return bool(client.ping())
        except redis.ConnectionError:  # not there yet, or loading
            return False

    def kill(self) -> None:
        """SIGKILL, and reaped."""
        assert self._process is not None
        processes.stop(self._process, signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and reaped. Fine if it is gone already."""
        if self._process is not None:
            processes.stop(self._process)

    def restart(self) -> None:
        """Stops it if it runs, and starts it on the same port and folder."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Ends a pause."""
        os.kill(self.pid, signal.SIGCONT)

    def client(self, *, timeout_s: float = 5.0) -> redis.Redis:
        """A raw client, bytes in and out, that repeats nothing."""
        return redis.Redis(
            host="127.0.0.1",
            port=self.port,
            password=self.password,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
        )
