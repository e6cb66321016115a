"""The peers' servers, each on 127.0.0.1 with its data in a folder that goes away, and gone itself behind the block."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.peers.places import Missing, program
from bench.peers.revision import revision
from bench.rig import PREFIX
from bench.tables import settings
from harness import ServiceProcess, StoreServer, processes
from harness.conditions import eventually_sync
from harness.stores import free_port
from headwayd import __version__
from headwayd.store.embedded import find_binary

START_S = 60.0
EVERYSEC, ALWAYS = "everysec", "always"


@dataclass(frozen=True)
class Server:
    """Where a driver finds it."""

    address: str
    version: str


Starts = Callable[[Path, str], AbstractContextManager[Server]]


def _told(*command: str | Path) -> str:
    """The version in what a program prints."""
    done = subprocess.run([str(part) for part in command], capture_output=True, check=True, text=True)
    found = re.search(r"\d+\.\d+(\.\d+)?", done.stdout + done.stderr)
    return found[0] if found else "?"


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def _running(
    command: Sequence[str | Path], *, folder: Path, ports: Sequence[int], env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A program, from when it listens until it and its children are gone."""
    log = folder / "server.log"
    process = processes.spawn(command, log=log, cwd=folder, env=os.environ | (env or {}))
    try:

        def is_there() -> bool:
            assert process.poll() is None, processes.tail(log)
            return all(_listens(port) for port in ports)

        eventually_sync(is_there, within=START_S)
        yield process
    finally:
        processes.stop(process)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it started


@contextmanager
def store(folder: Path, durability: str) -> Iterator[Server]:
    """The store that Headway uses here, with an append-only file."""
    server = StoreServer("valkey", folder, durable=True, options=("--appendfsync", durability))
    try:
        server.start()
        yield Server(server.url, f"Valkey {_told(find_binary(), '--version')}")
    finally:
        server.stop()


@contextmanager
def headway(folder: Path, durability: str, workers: int = 1) -> Iterator[Server]:
    """A service of so many processes on such a store. Its version tells of its code, too, which rounds that count
    together must have in common."""
    code = f" ({told})" if (told := revision()) else ""
    with store(folder, durability) as under:
        env = {"HEADWAY_REDIS_URL": under.address, "PRESSURE_PREFIX": PREFIX, "HEADWAY_LOG_LEVEL": "warning"}
        service = ServiceProcess(folder, env=env | settings(), flags=("--workers", str(workers)))
        try:
            yield Server(service.start().address, f"headwayd {__version__}{code} on {under.version}")
        finally:
            service.stop()


def headway_of_two(folder: Path, durability: str) -> AbstractContextManager[Server]:
    """A service of two processes, which share one address: each connection is served by one of them."""
    return headway(folder, durability, workers=2)


@contextmanager
def beanstalkd(folder: Path, durability: str) -> Iterator[Server]:
    """With its binlog; -f is the most milliseconds between two fsyncs, 0: one for each write."""
    port, server = free_port(), program("beanstalkd")
    interval = {EVERYSEC: "1000", ALWAYS: "0"}[durability]
    command: list[str | Path] = [server, "-l", "127.0.0.1", "-p", str(port), "-b", folder, "-f", interval]
    with _running(command, folder=folder, ports=[port]):
        yield Server(f"127.0.0.1:{port}", f"beanstalkd {_told(server, '-v')}")


@contextmanager
def nats(folder: Path, durability: str) -> Iterator[Server]:
    """JetStream in files. By itself it fsyncs every two minutes."""
    port, server = free_port(), program("nats-server")
    version = _told(server, "--version")
    if tuple(map(int, version.split(".")))[:2] < (2, 10):
        raise Missing(f"nats-server {version} cannot be told when to fsync; 2.10 can")
    settings = folder / "nats.conf"
    interval = {EVERYSEC: '"1s"', ALWAYS: "always"}[durability]
    settings.write_text(
        f"listen: 127.0.0.1:{port}\njetstream {{ store_dir: {str(folder)!r}, sync_interval: {interval} }}\n"
    )
    with _running([server, "-c", settings], folder=folder, ports=[port]):
        yield Server(f"nats://127.0.0.1:{port}", f"nats-server {version}")


@contextmanager
def nsqd(folder: Path, durability: str) -> Iterator[Server]:
    """With every message in files, none in memory only. It answers before it fsyncs, so that there is no `always`."""
    assert durability == EVERYSEC, "it has no other"
    port, http_port = free_port(), free_port()
    with nsqd_at(port, http_port, folder):
        yield Server(f"127.0.0.1:{port},127.0.0.1:{http_port}", f"nsqd {_told(program('nsqd'), '-version')}")


def nsqd_at(port: int, http_port: int, folder: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Its process, on these ports, with what is in the folder."""
    command: list[str | Path] = [program("nsqd"), "-data-path", folder, "-mem-queue-size", "0"]
    command += ["-tcp-address", f"127.0.0.1:{port}", "-http-address", f"127.0.0.1:{http_port}"]
    command += ["-broadcast-address", "127.0.0.1", "-sync-timeout", "1s", "-sync-every", "1000000"]
    command += ["-max-rdy-count", "100000", "-log-level", "warn"]
    return _running(command, folder=folder, ports=[port, http_port])


@contextmanager
def rabbitmq(folder: Path, durability: str) -> Iterator[Server]:
    """A node without plugins, with a name service (epmd) of its own: the usual one outlives the node."""
    assert durability == ALWAYS, "it has no other"
    server = program("rabbitmq-server", "/usr/lib/rabbitmq/bin")
    if Path("/usr/lib/rabbitmq/bin/rabbitmq-server").exists():
        server = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # Debian's wrapper would change the user
    port, epmd_port, distribution_port = free_port(), free_port(), free_port()
    plugins = folder / "enabled_plugins"
    plugins.write_text("[].\n")
    env = {
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution_port),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false",
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "HOME": str(folder),  # for the cookie
        "RUNNING_UNDER_SYSTEMD": "1",  # the script then becomes the node and does not outlive it
    }
    names: list[str | Path] = [program("epmd"), "-address", "127.0.0.1", "-port", str(epmd_port)]
    version = _rabbitmq_version(server)
    with (
        _running(names, folder=folder, ports=[epmd_port]),
        _running([server], folder=folder, ports=[port], env=env),
    ):
        yield Server(f"amqp://guest:guest@127.0.0.1:{port}/", f"RabbitMQ {version}")


def _rabbitmq_version(server: Path) -> str:
    """As the folder that the script is in, behind its links, is named: asking rabbitmqctl starts an Erlang for
    seconds."""
    found = re.search(r"/rabbitmq_server-([^/]+)/", str(server.resolve()))
    return found[1] if found else "?"
