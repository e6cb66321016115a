"""The client's README does what it says: its blocks of Python are run."""

import textwrap
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

import headway
from client.fake_admin import dead_message
from client.fake_service import FakeQueue, FakeService
from docs.blocks import ROOT, blocks_of

BLOCKS = [block for block in blocks_of((ROOT / "clients/python/README.md").read_text()) if block.words == ("python",)]
FRAGMENTS = [block for block in BLOCKS if "asyncio.run" not in block.text]


def _function(text: str) -> Callable[[headway.Queue], Awaitable[None]]:
    """A fragment as a function of the queue that it speaks of."""
    names: dict[str, Any] = {"headway": headway, "timedelta": timedelta}
    exec("async def fragment(queue):\n" + textwrap.indent(text, "    "), names)
    made: Callable[[headway.Queue], Awaitable[None]] = names["fragment"]
    return made


def test_first_look_and_fragments_are_found() -> None:
    assert len(FRAGMENTS) >= 2
    # Programs are files, too; tests/conformance runs them with a real service.
    files = [(ROOT / f"clients/python/examples/{name}.py").read_text() for name in ("first", "secure", "core")]
    assert [block.text for block in BLOCKS if block not in FRAGMENTS] == files


@pytest.mark.parametrize("block", FRAGMENTS, ids=lambda block: f"line {block.line}")
async def test_fragment_runs(block: Any, queue: headway.Queue, made: FakeQueue) -> None:
    made.dead = [dead_message("d1")]
    await _function(block.text)(queue)


async def test_first_look_runs(
    service: FakeService, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADWAY_ADDRESS", service.address)
    first = next(block for block in BLOCKS if block not in FRAGMENTS)
    text, _, _ = first.text.partition("asyncio.run")
    names: dict[str, Any] = {}
    exec(text, names)
    await names["main"]()
    assert capsys.readouterr().out == "position 1\nb'Hello, Ada'\n"
