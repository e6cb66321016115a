"""Run by `make mutants` before anything else: tests, and the services that they start, run the copy of the package."""

from __future__ import annotations

import os
from pathlib import Path

import headwayd
from harness import ServiceProcess


def test_tests_and_their_services_run_the_copy(service: ServiceProcess) -> None:
    copy = Path(os.environ["MUTANTS_COPY"])
    assert Path(headwayd.__file__).is_relative_to(copy)
    pids = (copy / "headwayd" / "imported_by").read_text().split()
    assert {str(os.getpid()), str(service.pid)} <= set(pids)
