"""While cores are short all threads but the event loop's leave its core."""

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import eventually
from headwayd.rpc import own_core
from headwayd.rpc.core import pacing
from headwayd.rpc.own_core import OwnCore
from unit.rpc.scheduler import Scheduler

RAN_MS = 800  # of each second

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="there is one core, or the system does not tell",
)


class Other:
    """A thread that waits, and the cores that it may run on."""

    def __init__(self) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._end.wait)
        self._thread.start()

    @property
    def cores(self) -> set[int]:
        assert self._thread.native_id
        return os.sched_getaffinity(self._thread.native_id)

    def end(self) -> None:
        self._end.set()
        self._thread.join()


@pytest.fixture
def other() -> Iterator[Other]:
    one = Other()
    yield one
    one.end()


@pytest.fixture
def core() -> Iterator[OwnCore]:
    one = OwnCore()
    one.clear()
    yield one
    one.release()


ALL = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def test_others_leave_it_while_cores_are_short_and_may_come_back(
    scheduler: Scheduler, core: OwnCore, other: Other
) -> None:
    scheduler.pass_by(RAN_MS, waited_ms=200)
    core.clear()
    assert len(other.cores) == len(ALL) - 1
    assert other.cores < ALL
    assert os.sched_getaffinity(0) == ALL  # it may run anywhere itself
    core.release()
    assert other.cores == ALL
    core.release()
    assert other.cores == ALL


def test_threads_that_came_since_follow(scheduler: Scheduler, core: OwnCore) -> None:
    scheduler.pass_by(RAN_MS, waited_ms=200)
    core.clear()
    later = Other()
    try:
        assert later.cores == ALL
        scheduler.pass_by(RAN_MS, waited_ms=10)
        core.clear()
        assert len(later.cores) == len(ALL) - 1
        core.release()
        assert later.cores == ALL
    finally:
        later.end()


@pytest.mark.parametrize("waited_ms", [0, 100, 500])  # the last because of other processes
def test_where_there_are_enough_or_others_have_them_all_stay(
    scheduler: Scheduler, core: OwnCore, other: Other, waited_ms: int
) -> None:
    scheduler.pass_by(RAN_MS, waited_ms=waited_ms)
    core.clear()
    assert other.cores == ALL


def test_they_come_back_where_nothing_is_gained(scheduler: Scheduler, core: OwnCore, other: Other) -> None:
    scheduler.pass_by(RAN_MS, waited_ms=200)
    core.clear()
    scheduler.pass_by(RAN_MS, waited_ms=500)  # whoever is there is not of this process
    core.clear()
    assert other.cores == ALL
    scheduler.pass_by(RAN_MS, waited_ms=200)
    core.clear()
    assert other.cores == ALL, "it is not tried again until the flood is over"
    core.release()
    scheduler.pass_by(RAN_MS, waited_ms=200)
    core.clear()
    assert len(other.cores) == len(ALL) - 1


def test_a_kernel_that_does_not_tell_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: Other
) -> None:
    monkeypatch.setattr(pacing, "_SCHEDSTAT", tmp_path / "none")
    core = OwnCore()
    core.clear()
    core.clear()
    assert other.cores == ALL


# -- for as long as it matters ----------------------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_core, "AGAIN_S", 0.01)
    monkeypatch.setattr(own_core, "LASTS_S", 0.1)


@pytest.mark.usefixtures("soon")
async def test_it_is_kept_clear_until_nobody_has_asked_for_a_while(
    scheduler: Scheduler, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_core, "LASTS_S", 0.6)  # longer than a busy machine keeps this loop from asking again
    core = OwnCore()
    for _ in range(16):  # for longer than one asking lasts
        core.keep_clear()
        scheduler.pass_by(RAN_MS, waited_ms=200)
        await asyncio.sleep(0.05)
    assert len(other.cores) == len(ALL) - 1
    assert len([task for task in asyncio.all_tasks() if task.get_name() == "keep a core clear"]) == 1
    await eventually(lambda: other.cores == ALL)
    core.keep_clear()
    await asyncio.sleep(0)
    scheduler.pass_by(RAN_MS, waited_ms=200)
    await eventually(lambda: len(other.cores) == len(ALL) - 1)
    core.end()
    await eventually(lambda: other.cores == ALL)
    core.end()


@pytest.mark.usefixtures("soon")
async def test_what_it_waited_before_is_of_no_interest(scheduler: Scheduler, other: Other) -> None:
    scheduler.pass_by(RAN_MS, waited_ms=200)
    core = OwnCore()
    core.keep_clear()
    await asyncio.sleep(0.05)
    assert other.cores == ALL
    core.end()
