"""What a process does with memory that was freed, seen by the page faults of the next request of the kind."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator is told anything")

ROUNDS, PIECES, PIECE_BYTES, PAGE_BYTES = 20, 16, 512 * 1024, 4096
FAULTS_OF_A_ROUND = PIECES * PIECE_BYTES // PAGE_BYTES
PROGRAM = f"""
import resource, sys
from headwayd.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
for n in range({ROUNDS}):
    pieces = [b"x" * {PIECE_BYTES} for _ in range({PIECES})]
    del pieces
    if n == 0:
        first = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - first)
"""


def faults(how: str, **environment: str) -> int:
    """Of all rounds but the first."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("GLIBC_TUNABLES", "MALLOC_"))}
    command = [sys.executable, "-c", PROGRAM, how]
    done = subprocess.run(command, env=plain | environment, capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)


def test_what_was_freed_is_there_for_the_next_and_was_not_before() -> None:
    assert faults("kept") < FAULTS_OF_A_ROUND
    assert faults("as it is") > (ROUNDS - 1) * FAULTS_OF_A_ROUND // 2


def test_an_allocator_that_the_environment_sets_is_left_alone() -> None:
    assert faults("kept", MALLOC_TRIM_THRESHOLD_="131072") > (ROUNDS - 1) * FAULTS_OF_A_ROUND // 2
