"""The benchmark beside other queues drives Headway by each of its drivers in Python, and finds every message done with
once."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.peers.catalogue import CATALOGUE
from bench.peers.contest import Cell, Contest
from bench.peers.revision import revision
from bench.peers.servers import ALWAYS, EVERYSEC
from headwayd import __version__

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "durability"),
    [
        ("Headway, streams", EVERYSEC),
        ("Headway, streams", ALWAYS),
        ("Headway, calls", EVERYSEC),
        ("Headway, Python client", EVERYSEC),
    ],
)
def test_all_phases_deliver_each_message_exactly_once(name: str, durability: str, tmp_path: Path) -> None:
    peer = CATALOGUE[name]
    (tmp_path / "server").mkdir()
    with peer.server(tmp_path / "server", durability) as server:
        assert server.version.startswith(f"headwayd {__version__}")
        assert revision() in server.version
        run = Contest(peer, Cell(count=950, size=64, clients=3, patience_s=60), server.address, tmp_path).run()
    assert run.fault == ""
    assert min(run.put, run.take, run.both) > 0


def test_a_phase_that_takes_too_long_is_given_up_and_told(tmp_path: Path) -> None:
    peer = CATALOGUE["Headway, calls"]
    (tmp_path / "server").mkdir()
    with peer.server(tmp_path / "server", EVERYSEC) as server:
        run = Contest(peer, Cell(count=50_000, size=64, clients=1, patience_s=0), server.address, tmp_path).run()
    assert run.put == run.take == run.both == 0
    assert "50000 missing" in run.fault
