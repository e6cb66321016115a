"""What a log line must never hold."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import structlog
from headwayd.telemetry import logs

def fail():
    password = "SECRET" + "-VALUE"
    raise ValueError("a defect")

logs.set_up(log_format=sys.argv[1], level="info")
try:
    fail()
except ValueError:
    structlog.get_logger("test").exception("it failed", payload=b"PAY" + b"LOAD")
"""


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_trace_is_logged_without_local_variables_and_bytes(log_format: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, log_format], capture_output=True, text=True, check=True, timeout=30
    )
    assert "it failed" in done.stderr
    assert "a defect" in done.stderr
    assert "SECRET-VALUE" not in done.stderr
    assert "PAYLOAD" not in done.stderr
