"""Several store servers that stand in for each other: a primary with replicas that Sentinels watch, and a cluster."""

import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from harness import processes
from harness.conditions import eventually_sync
from harness.stores import StoreServer, free_port, program

# How long a server must be silent until Sentinels, or the other nodes, take it for gone.
DETECTION_S = 1.0
SERVICE = "queues"
SLOTS = 16_384


@dataclass(frozen=True, slots=True)
class Fence:
    """TLS with certificates on both sides, of the files in `folder`, and passwords: of the servers, and of the
    Sentinels. The tests' own clients go in by a port without TLS."""

    folder: Path
    password: str
    sentinel_password: str

    def options(self, tls_port: int) -> dict[str, str]:
        """What servers and Sentinels have in common."""
        return {
            "tls-port": str(tls_port),
            "tls-replication": "yes",
            "tls-cert-file": str(self.folder / "cert.pem"),
            "tls-key-file": str(self.folder / "key.pem"),
            "tls-ca-cert-file": str(self.folder / "ca.pem"),
        }

    def flags(self, tls_port: int, **more: str) -> tuple[str, ...]:
        """A server's."""
        own = {"requirepass": self.password, "masterauth": self.password} | more
        return tuple(part for name, value in (self.options(tls_port) | own).items() for part in (f"--{name}", value))

    def query(self) -> str:
        """Of a URL for the service."""
        return (
            f"ssl_ca_certs={self.folder}/ca.pem&ssl_certfile={self.folder}/cert.pem&ssl_keyfile={self.folder}/key.pem"
        )


def _server(kind: str, folder: Path, options: tuple[str, ...], fence: Fence | None, **of_fence: str) -> StoreServer:
    """One of several. Its bus port, if it is a cluster's, is 10,000 above the others', and must be free, too."""
    port, tls_port = _low_port(), _low_port() if fence else 0
    password = fence.password if fence else None
    if fence:
        options = (*options, *fence.flags(tls_port, **of_fence))
    return StoreServer(kind, folder, durable=True, options=options, port=port, tls_port=tls_port, password=password)


def _low_port() -> int:
    while (port := free_port()) > 55_000 or not _is_free(port + 10_000):
        pass
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Sentinel:
    """One Sentinel process."""

    def __init__(self, kind: str, folder: Path, primary: StoreServer, fence: Fence | None = None) -> None:
        self.port = free_port()
        self.tls_port = free_port() if fence else 0
        self.password = fence.sentinel_password if fence else None
        self.log = folder / "sentinel.log"
        folder.mkdir()
        config = folder / "sentinel.conf"
        lines = [f"port {self.port}", "bind 127.0.0.1", f"dir {folder}"]
        lines += [f"sentinel monitor {SERVICE} 127.0.0.1 {primary.known_port} 2"]
        lines += [f"sentinel down-after-milliseconds {SERVICE} {DETECTION_S * 1000:.0f}"]
        lines += [f"sentinel failover-timeout {SERVICE} 3000", f"sentinel parallel-syncs {SERVICE} 1"]
        if fence:
            lines += [f"{name} {value}" for name, value in fence.options(self.tls_port).items()]
            lines += [f"requirepass {self.password}", f"sentinel sentinel-pass {self.password}"]
            lines += [f"sentinel auth-pass {SERVICE} {fence.password}"]
        config.write_text("\n".join(lines) + "\n")
        command: list[str | Path] = [program(kind), config, "--sentinel"]
        self._process: subprocess.Popen[bytes] = processes.spawn(command, log=self.log)

    def client(self) -> redis.Redis:
        """A raw client."""
        return redis.Redis(host="127.0.0.1", port=self.port, password=self.password, protocol=2, socket_timeout=5)

    def stop(self) -> None:
        """SIGTERM, and reaped."""
        processes.stop(self._process)


class SentinelTrio:
    """A primary, two replicas, and three Sentinels that agree by two."""

    def __init__(self, kind: str, folder: Path, *, options: tuple[str, ...] = (), fence: Fence | None = None) -> None:
        self.servers: list[StoreServer] = []
        self.sentinels: list[Sentinel] = []
        self._kind = kind
        self._folder = folder
        self._options = ("--repl-diskless-sync-delay", "0", *options)
        self._fence = fence

    def start(self) -> None:
        """Returns when replicas follow and Sentinels know each other."""
        for number in range(3):
            options = self._options
            if number:
                options = (*options, "--replicaof", "127.0.0.1", str(self.servers[0].known_port))
            folder = self._folder / f"server{number}"
            folder.mkdir()
            server = _server(self._kind, folder, options, self._fence)
            self.servers.append(server)
            server.start()
        self.sentinels = [
            Sentinel(self._kind, self._folder / f"sentinel{number}", self.servers[0], self._fence)
            for number in range(3)
        ]
        eventually_sync(lambda: all(map(self._is_settled, self.sentinels)), within=30)

    @staticmethod
    def _is_settled(sentinel: Sentinel) -> bool:
        with sentinel.client() as client:
            try:
                told = client.sentinel_masters()
            except redis.ConnectionError:
                return False
        state = told.get(SERVICE, {})
        return bool(state.get("num-slaves") == 2 and state.get("num-other-sentinels") == 2)

    def stop(self) -> None:
        """All of them."""
        for sentinel in self.sentinels:
            sentinel.stop()
        for server in self.servers:
            server.stop()

    @property
    def url(self) -> str:
        """As the service is told."""
        hosts = ",".join(f"127.0.0.1:{sentinel.tls_port or sentinel.port}" for sentinel in self.sentinels)
        if self._fence:
            return f"rediss+sentinel://{hosts}/{SERVICE}/0?{self._fence.query()}"
        return f"redis+sentinel://{hosts}/{SERVICE}/0"

    @property
    def primary(self) -> StoreServer:
        """As the Sentinel knows it that has heard the latest."""
        states = []
        for sentinel in self.sentinels:
            with sentinel.client() as client:
                states.append(client.sentinel_masters()[SERVICE])
        port = max(states, key=lambda state: int(state["config-epoch"]))["port"]
        return next(server for server in self.servers if server.known_port == port)


class ClusterOfSix:
    """Three primaries with a third of the slots each, and a replica of each."""

    def __init__(self, kind: str, folder: Path, *, options: tuple[str, ...] = (), fence: Fence | None = None) -> None:
        self.nodes: list[StoreServer] = []
        self._kind = kind
        self._folder = folder
        enabled = ("--cluster-enabled", "yes", "--cluster-node-timeout", f"{DETECTION_S * 1000:.0f}")
        self._options = (*enabled, "--repl-diskless-sync-delay", "0", *options)
        self._fence = fence

    def start(self) -> None:
        """Returns when all nodes find the cluster well and replicas follow."""
        for number in range(6):
            folder = self._folder / f"node{number}"
            folder.mkdir()
            node = _server(self._kind, folder, self._options, self._fence, **{"tls-cluster": "yes"})
            self.nodes.append(node)
            node.start()
        for number, node in enumerate(self.nodes):
            with node.client() as client:
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                if number < 3:
                    first, last = number * SLOTS // 3, (number + 1) * SLOTS // 3 - 1
                    client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].known_port)
        eventually_sync(lambda: all(self._known_to(node) == 6 for node in self.nodes), within=20)
        for number, node in enumerate(self.nodes[3:]):
            with node.client() as client:
                client.execute_command("CLUSTER", "REPLICATE", self.id_of(self.nodes[number]))
        eventually_sync(lambda: all(map(self._is_settled, self.nodes)), within=30)

    @staticmethod
    def _known_to(node: StoreServer) -> int:
        with node.client() as client:
            nodes: bytes = client.execute_command("CLUSTER", "NODES")
            return nodes.count(b" connected")

    @staticmethod
    def _is_settled(node: StoreServer) -> bool:
        with node.client() as client:
            is_well = b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO")
            replication = client.info("replication")
            is_linked = replication["role"] == "master" or replication["master_link_status"] == "up"
            rows = client.execute_command("CLUSTER", "SLOTS")
            return is_well and is_linked and len(rows) == 3 and all(len(row) == 4 for row in rows)

    def stop(self) -> None:
        """All of them."""
        for node in self.nodes:
            node.stop()

    @property
    def url(self) -> str:
        """As the service is told: two of the nodes."""
        hosts = f"127.0.0.1:{self.nodes[0].known_port},127.0.0.1:{self.nodes[4].known_port}"
        return f"rediss+cluster://{hosts}?{self._fence.query()}" if self._fence else f"redis+cluster://{hosts}"

    @staticmethod
    def id_of(node: StoreServer) -> str:
        """By which the nodes know it."""
        with node.client() as client:
            found: bytes = client.execute_command("CLUSTER", "MYID")
        return found.decode()

    def primary_of(self, key: str) -> StoreServer:
        """The node that a living node takes for the one that has the key."""
        for node in self.nodes:
            try:
                with node.client(timeout_s=0.3) as client:
                    slot = client.execute_command("CLUSTER", "KEYSLOT", key)
                    rows = client.execute_command("CLUSTER", "SLOTS")
            except (redis.ConnectionError, redis.TimeoutError):
                continue
            for first, last, (_, port, *_), *_ in rows:
                if first <= slot <= last:
                    return next(each for each in self.nodes if each.port == port)
        raise AssertionError(f"nobody has the slot of {key}")

    def lend_replica_to(self, node: StoreServer) -> None:
        """Gives a primary a second replica, another shard's: with one it could not write once that one has taken its
        place."""
        lent = self.nodes[3 + (self.nodes.index(node) + 1) % 3]
        with lent.client() as client:
            client.execute_command("CLUSTER", "REPLICATE", self.id_of(node))
        with node.client() as client:
            eventually_sync(lambda: self._follow(client) == 2, within=20)

    @staticmethod
    def _follow(client: redis.Redis) -> int:
        told = client.info("replication")
        return sum(told.get(f"slave{number}", {}).get("state") == "online" for number in range(2))

    def slot_to_move(self, key: str) -> tuple[int, StoreServer, StoreServer]:
        """The slot of the key, the primary that has it, and another one."""
        source = self.primary_of(key)
        with source.client() as client:
            slot = int(client.execute_command("CLUSTER", "KEYSLOT", key))
        return slot, source, next(node for node in self.nodes[:3] if node is not source)

    def move_slot_at_once(self, slot: int, source: StoreServer, target: StoreServer) -> None:
        """As Valkey does from 9.0 on: all keys of the slot, in one step for everybody else."""
        with source.client() as giving, target.client() as taking:
            giving.execute_command("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self.id_of(target))
            eventually_sync(lambda: self._has(taking, slot, target), within=20)

    @staticmethod
    def _has(client: redis.Redis, slot: int, node: StoreServer) -> bool:
        rows: list[list[Any]] = client.execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
        return any(first <= slot <= last and port == node.port for first, last, (_, port, *_), *_ in rows)

    def move_slot(self, slot: int, source: StoreServer, target: StoreServer) -> None:
        """As `redis-cli --cluster reshard` does: keys move one by one, and the slot afterwards."""
        with source.client() as giving, target.client() as taking:
            source_id, target_id = self.id_of(source), self.id_of(target)
            taking.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
            giving.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
            while keys := giving.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 10):
                for key in keys:
                    giving.execute_command("MIGRATE", "127.0.0.1", target.port, key, 0, 5_000)
            for client in (taking, giving):
                client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", target_id)
