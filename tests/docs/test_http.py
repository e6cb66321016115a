"""docs/http.md does what it says: its blocks marked `run` are executed in order by curl against a live service."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from docs.blocks import ROOT, blocks_of, prints
from harness import ServiceProcess

BLOCKS = [block for block in blocks_of((ROOT / "docs/http.md").read_text()) if block.is_run]
_BLOCK_S = 60


@pytest.mark.long
def test_every_block_marked_run_prints_what_the_text_says(
    make_service: Callable[..., ServiceProcess], tmp_path: Path
) -> None:
    if shutil.which("curl") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("curl is not on the path")
        pytest.skip("curl is not on the path")
    service = make_service(HEADWAY_HTTP_LISTEN="127.0.0.1:0")
    (url,) = [address for address in service.addresses if address.startswith("http://")]
    assert len(BLOCKS) >= 2
    for block in BLOCKS:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            env=os.environ | {"HEADWAY_HTTP": url},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_BLOCK_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert prints(block.printed or "", done.stdout), f"{block.text}\nprinted\n{done.stdout}"
