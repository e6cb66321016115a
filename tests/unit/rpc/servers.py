"""The gRPC server as the service makes it, with an engine of the test's."""

from __future__ import annotations

from typing import Any

from headwayd.config.settings import Settings
from headwayd.rpc.server import RpcServer
from unit.rpc.fake_engine import FakeEngine

_SETTINGS = (
    "keepalive",
    "keepalive_timeout",
    "max_connection_idle",
    "handshake_timeout",
    "write_timeout",
    "acceptors",
    "flood_calls",
)


def rpc_server(engine: FakeEngine, **changes: Any) -> RpcServer:
    """On loopback; what is not among the `changes` is as the settings have it by default."""
    settings = {name: Settings.model_fields[name].default for name in _SETTINGS}
    given: dict[str, Any] = {"listen": ["127.0.0.1:0"], "limits": engine.limits, **settings, **changes}
    return RpcServer(engine, **given)
