"""What a process may need by its limits and what it has: limits follow from memory, and too high ones are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from headwayd.config.memory import granted_bytes
from headwayd.config.settings import BadSettings, Settings
from headwayd.domain.footprint import BASE_BYTES, Capacity, capacity_within, window_within

MIB = 1024 * 1024
ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm/headway/values.yaml"


@given(st.integers(BASE_BYTES, 64 * 1024 * MIB))
def test_what_follows_from_the_memory_fits_into_it(memory: int) -> None:
    assert capacity_within(memory).most_bytes <= memory


def test_where_memory_is_ample_the_defaults_hold_and_no_more() -> None:
    assert capacity_within(64 * 1024 * MIB) == Capacity()


def test_the_runbook_tells_what_the_container_of_the_chart_takes() -> None:
    told = " ".join((ROOT / "docs/operations.md").read_text().split())
    takes = capacity_within(512 * MIB)
    assert (
        f"takes {takes.max_running_calls:,} calls and streams, {takes.max_pending_calls:,} that wait to be begun, "
        f"{takes.max_connections:,} connections, {takes.max_http_connections:,} to the HTTP port, "
        f"and {takes.max_running_bytes // MIB} MiB" in told
    )
    assert "from 3 GiB on the most of each" in told
    ample, full = capacity_within(3 * 1024 * MIB), Capacity()
    assert replace(ample, max_running_bytes=full.max_running_bytes) == full


def test_a_default_start_fits_into_the_container_of_the_chart() -> None:
    text = yaml.safe_load(CHART.read_text())["resources"]["limits"]["memory"]
    memory = int(text.removesuffix("Mi")) * MIB
    limits = Settings.load({"memory_limit": memory}).limits
    assert limits.max_running_calls >= 1_000
    assert limits.max_running_bytes >= limits.max_request_bytes


@given(st.integers(192 * MIB, 64 * 1024 * MIB), st.integers(10, 20_000), st.integers(100, 10_000))
def test_what_calls_may_send_unread_fits_into_what_the_limits_leave(memory: int, running: int, pending: int) -> None:
    capacity = replace(capacity_within(memory), max_running_calls=running, max_pending_calls=pending)
    window = window_within(memory, capacity)
    assert 65_535 <= window <= MIB  # a large batch, and no more than is good for anything
    assert window == 65_535 or capacity.most_bytes + window * (running + pending) <= memory


@pytest.mark.parametrize(
    ("settings", "window"),
    [
        pytest.param({"memory_limit": 512 * MIB}, 65_535, id="in the chart's container"),
        pytest.param(
            {"memory_limit": 512 * MIB, "max_running_calls": 200, "max_pending_calls": 100}, 194_177, id="few"
        ),
        pytest.param({"memory_limit": 16 * 1024 * MIB}, 124_686, id="with ample memory"),
        pytest.param({"memory_limit": 1024 * 1024 * MIB}, MIB, id="with more than is good for anything"),
        pytest.param({"memory_limit": 512 * MIB, "receive_window": 4 * MIB}, 4 * MIB, id="as it was given"),
    ],
)
def test_more_may_be_sent_unread_where_there_is_memory_for_it(settings: dict[str, int], window: int) -> None:
    loaded = Settings.load(settings)
    assert loaded.capacity(loaded.workers).receive_window == window


def refusal(**flags: object) -> str:
    with pytest.raises(BadSettings) as caught:
        Settings.load(flags)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "fits", "is_too_much"),
    [
        ("max_running_calls", 4_915, 4_916 + 20),
        ("max_pending_calls", 3_932, 3_932 + 80),
        ("max_connections", 1_404, 1_404 + 100),
        ("max_http_connections", 614, 614 + 100),
        ("max_running_bytes", 32 * MIB, 33 * MIB),
    ],
)
def test_limits_that_need_more_memory_than_there_is_end_the_start(name: str, fits: int, is_too_much: int) -> None:
    memory = 512 * MIB
    assert getattr(Settings.load({"memory_limit": memory, name: fits}).capacity(1), name) == fits
    told = refusal(**{"memory_limit": memory, name: is_too_much})
    assert f"{name} {is_too_much}" in told
    assert "which has 512" in told


def test_a_request_must_fit_into_what_all_requests_may_take() -> None:
    told = refusal(max_running_bytes=8 * MIB - 1)
    assert "max_request_bytes must not exceed" in told
    assert told.endswith("set it lower, or max_running_bytes higher")
    assert Settings.load({"max_running_bytes": 8 * MIB}).limits.max_running_bytes == 8 * MIB
    for memory in (192, 208):
        assert refusal(memory_limit=memory * MIB).endswith(
            f"with {memory} MiB of memory: set it lower, or memory_limit higher"
        )
        fitting = Settings.load({"memory_limit": memory * MIB, "max_request_bytes": 5 * MIB})
        assert fitting.limits.max_request_bytes == 5 * MIB


def test_workers_share_the_memory() -> None:
    one = Settings.load({"memory_limit": 2048 * MIB, "workers": 1}).limits
    four = Settings.load({"memory_limit": 2048 * MIB, "workers": 4}).limits
    assert four.max_running_calls < one.max_running_calls
    assert four.max_running_calls == Settings.load({"memory_limit": 512 * MIB}).limits.max_running_calls


@pytest.mark.parametrize(
    ("membership", "files", "granted"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "536870912"}, 512 * MIB),
        ("0::/a/b\n", {"a/b/memory.max": "134217728", "a/memory.max": "536870912"}, 128 * MIB),
        # In a container the group's path is often the host's, and only the root is there.
        ("0::/kubepods/x\n", {"memory.max": "536870912"}, 512 * MIB),
        ("4:cpu,memory:/x\n1:cpu:/\n", {"memory/x/memory.limit_in_bytes": "536870912"}, 512 * MIB),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),  # version 1: no limit
        ("0::/\n", {}, None),
    ],
    ids=["v2, above", "v2, the least", "v2, only the root", "v1", "v1, none", "v2, none"],
)
def test_the_memory_is_what_the_control_group_grants(
    tmp_path: Path, membership: str, files: dict[str, str], granted: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    told = tmp_path / "membership"
    told.write_text(membership)
    machine = granted_bytes(tmp_path / "none", tmp_path / "none")
    assert granted_bytes(tmp_path, told) == (granted or machine)
