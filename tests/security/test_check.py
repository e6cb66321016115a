"""`headwayd check` with the service's own settings, over TLS."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import ServiceProcess
from security.authority import Authority
from security.callers import TEAM, write_callers

pytestmark = pytest.mark.any_store


def check(service: ServiceProcess, **env: str) -> int:
    program = Path(sys.executable).with_name("headwayd")
    command: list[str | Path] = [sys.executable, program, "check", service.address, "--timeout", "5s"]
    return subprocess.run(command, env=service.env | env, check=False, timeout=30, capture_output=True).returncode


@pytest.mark.parametrize("is_mutual", [False, True])
def test_a_service_with_tls_and_callers_is_checked_without_credentials(
    start: Callable[..., ServiceProcess], short_dir: Path, is_mutual: bool
) -> None:
    authority = Authority()
    files = authority.write_server(short_dir)
    if is_mutual:
        files["HEADWAY_TLS_CLIENT_CA"] = authority.write(short_dir)
    service = start(**files, HEADWAY_AUTH_FILE=str(write_callers(short_dir / "callers.toml", TEAM.values())))
    assert check(service) == 0
    other = short_dir / "other"
    other.mkdir()
    assert check(service, **Authority().write_server(other)) == 1  # whoever answers has another certificate
