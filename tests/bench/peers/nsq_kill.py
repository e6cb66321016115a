"""What NSQ loses when its server is killed while a consumer holds messages: why it is shown beside Headway, and not
compared with it. `cd tests && ../.venv/bin/python -m bench.peers.nsq_kill`, once `make bench-peers-setup` has been.

All messages go through files, and are fsynced every second. Counted by nsqd itself, before and after.
"""

from __future__ import annotations

import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from bench.peers.servers import START_S, nsqd_at
from harness.conditions import eventually_sync
from harness.stores import free_port

MESSAGES, HELD = 1_000, 100
SYNCED_S = 3.0


def main() -> None:
    """Prints what is there before it is killed, and when it is there again."""
    port, http_port = free_port(), free_port()

    def ask(method: str, path: str, body: bytes = b"") -> Any:
        return httpx.request(method, f"http://127.0.0.1:{http_port}{path}", content=body).raise_for_status()

    def counted() -> str:
        (topic,) = ask("GET", "/stats?format=json").json()["topics"]
        (channel,) = topic["channels"]
        return f"{topic['depth'] + channel['depth']} wait, {channel['in_flight_count']} are held"

    with tempfile.TemporaryDirectory(prefix="hw-") as folder:
        with nsqd_at(port, http_port, Path(folder)) as server:
            ask("POST", "/topic/create?topic=jobs")
            ask("POST", "/channel/create?topic=jobs&channel=workers")
            ask("POST", "/mpub?topic=jobs", b"\n".join(b"%d" % number for number in range(MESSAGES)))
            with socket.create_connection(("127.0.0.1", port)) as consumer:
                consumer.sendall(b"  V2SUB jobs workers\nRDY %d\n" % HELD)
                eventually_sync(lambda: f"{HELD} are held" in counted(), within=START_S)
                time.sleep(SYNCED_S)
                print(f"{MESSAGES} put: {counted()}")
                server.kill()
                server.wait()
        with nsqd_at(port, http_port, Path(folder)):
            print(f"killed, and started again: {counted()}")


if __name__ == "__main__":
    main()
