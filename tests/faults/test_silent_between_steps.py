"""The store falls silent between two steps of one call: all steps together have the time that one would have."""

from __future__ import annotations

import time

import grpc
import pytest

from faults.conftest import Open, Serve
from faults.moments import at_rest
from faults.table import BUDGET_S, MARGIN_S, ask, assert_unavailable, assert_unknown, requests
from faults.wires import ReplyProxy
from harness import StoreServer
from headway.v1 import admin_service_pb2
from wire.calls import Line

pytestmark = pytest.mark.any_store

PURGE_STEP = 1_000


@pytest.fixture
async def slow(proxy: ReplyProxy, serve: Serve, open_line: Open) -> Line:
    """A queue through that wire. One answer may take as long as a whole call, so the call's time is what ends it. Every
    call was made once: the store knows the scripts, and there is a connection."""
    line = await open_line(await serve(proxy.url, HEADWAY_STORE_TIMEOUT="2s"), "jobs")
    await line.create()
    for name in ("List", "Get", "Purge"):
        await ask(line, name, requests("jobs", "")[name], timeout=10)
    await line.update(bound=0)
    return line


# Deadlines, and how late the first answer is: with the second step's full time added the call would be late.
@pytest.mark.parametrize(("timeout", "late_s"), [(10.0, 1.5), (2.0, 1.0)])
async def test_several_steps_have_the_time_of_one(slow: Line, proxy: ReplyProxy, timeout: float, late_s: float) -> None:
    proxy.late_s, proxy.answers_left = late_s, 1
    answer = await ask(slow, "List", requests("jobs", "")["List"], timeout=timeout)
    assert_unavailable(answer, "SILENT", within_s=min(timeout, BUDGET_S + MARGIN_S))
    assert answer.took_s > late_s


async def test_a_purge_goes_on_for_as_long_as_the_store_answers(slow: Line, proxy: ReplyProxy) -> None:
    for _ in range(3):
        await slow.put(*(b"x" for _ in range(PURGE_STEP)))
    proxy.late_s = 0.8
    answer = await ask(slow, "Purge", admin_service_pb2.PurgeRequest(queue="jobs"), timeout=30)
    assert isinstance(answer.reply, admin_service_pb2.PurgeResponse), answer
    assert answer.reply.waiting == 3 * PURGE_STEP
    assert answer.took_s > BUDGET_S
    proxy.late_s = 0.0
    assert (await slow.counts()).length == 0


async def test_a_purge_ends_within_2_s_of_the_last_answer_and_again_it_goes_on(slow: Line, proxy: ReplyProxy) -> None:
    for _ in range(4):
        await slow.put(*(b"x" for _ in range(PURGE_STEP)))
    proxy.late_s, proxy.answers_left = 0.8, 2
    request = admin_service_pb2.PurgeRequest(queue="jobs")
    answer = await ask(slow, "Purge", request, timeout=30)
    assert_unknown(answer, "SILENT", within_s=2 * 0.8 + BUDGET_S + MARGIN_S)
    assert answer.took_s > BUDGET_S
    proxy.late_s = 0.0
    proxy.pass_replies()
    assert 0 < (await slow.counts()).length <= 2 * PURGE_STEP
    answer = await ask(slow, "Purge", request, timeout=10)
    assert answer.error.code is grpc.StatusCode.OK, answer
    assert (await slow.counts()).length == 0


async def test_a_purge_whose_caller_has_gone_ends_between_two_steps(
    slow: Line, proxy: ReplyProxy, fresh_store_server: StoreServer
) -> None:
    for _ in range(6):
        await slow.put(*(b"x" for _ in range(PURGE_STEP)))
    proxy.late_s = 0.3
    begun = time.monotonic()
    answer = await ask(slow, "Purge", admin_service_pb2.PurgeRequest(queue="jobs"), timeout=0.8)
    assert answer.error.code is grpc.StatusCode.DEADLINE_EXCEEDED, answer
    assert time.monotonic() - begun < 0.8 + MARGIN_S
    proxy.late_s = 0.0
    await at_rest(fresh_store_server)
    assert (await slow.counts()).length > 0
