"""The ranges of all calls but Create, Update and Put, at min−1, min, max, max+1."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from headway.v1.admin_service_pb2 import CheckRequest, ListDeadRequest, RedriveRequest
from headway.v1.message_pb2 import Message
from headway.v1.queue_service_pb2 import (
    AckRequest,
    CloseRequest,
    DelayRequest,
    DeleteRequest,
    ExtendRequest,
    GetRequest,
    ListRequest,
    PeekRequest,
    WithdrawRequest,
)
from headwayd.domain.errors import TooLarge
from headwayd.domain.limits import DAY_MS, HOUR_MS, Limits
from headwayd.rpc import admin_requests, requests
from unit.rpc.validating import LIMITS, NEGATIVE, put, refused

HOUR = Duration(seconds=3_600)
OVER_AN_HOUR = Duration(seconds=3_600, nanos=1)


@pytest.mark.parametrize("name", ["producer", "consumer"])
def test_role_names_have_at_most_200_bytes(name: str) -> None:
    def ask(value: str) -> Any:
        if name == "producer":
            return put(Message(), producer=value)
        return requests.get_order(GetRequest(queue="q", consumer=value), LIMITS)

    for value in ("", "x" * 200, "é" * 100):
        assert getattr(ask(value), name) == value
    for value in ("x" * 201, "é" * 101):
        assert list(refused(ask, value)) == [name]


# -- waits, leases, counts --------------------------------------------------------------------------------------------

WAITS: list[tuple[Callable[[Any], int], int]] = [
    (lambda f: int(put(Message(), **f).wait_ms), 0),
    (lambda f: requests.get_order(GetRequest(queue="q", **f), LIMITS).wait_ms, 0),
    (lambda f: requests.close_wait_ms(CloseRequest(queue="q", **f), LIMITS), 1_000),
    (lambda f: requests.delete_wait_ms(DeleteRequest(queue="q", **f), LIMITS), 5_000),
]


@pytest.mark.parametrize(("ask", "default_ms"), WAITS, ids=["put", "get", "close", "delete"])
def test_waits_are_0_to_1_h_and_rounded_up(ask: Callable[[Any], int], default_ms: int) -> None:
    assert ask({}) == default_ms
    assert ask({"wait": Duration()}) == 0
    assert ask({"wait": Duration(nanos=1)}) == 1
    assert ask({"wait": HOUR}) == HOUR_MS
    for wait in (OVER_AN_HOUR, NEGATIVE, Duration(seconds=-1)):
        assert list(refused(ask, {"wait": wait})) == ["wait"]


def test_the_operators_longest_wait_bounds_defaults_too() -> None:
    limits = Limits(max_wait_ms=500)
    assert requests.delete_wait_ms(DeleteRequest(queue="q"), limits) == 500
    request = GetRequest(queue="q", wait=Duration(nanos=501_000_000))
    assert refused(requests.get_order, request, limits) == {"wait": "must be 0 ms to 500 ms"}


@pytest.mark.parametrize("is_get", [True, False], ids=["get", "extend"])
def test_leases_are_100_ms_to_12_h(is_get: bool) -> None:
    def ask(**fields: Any) -> int:
        if is_get:
            return requests.get_order(GetRequest(queue="q", **fields), LIMITS).lease_ms
        return requests.extension(ExtendRequest(queue="q", leases=["l"], **fields), LIMITS)[1]

    assert ask() == 0
    assert ask(lease=Duration(nanos=100_000_000)) == 100
    assert ask(lease=Duration(nanos=100_000_001)) == 101
    assert ask(lease=Duration(seconds=12 * 3_600)) == 12 * HOUR_MS
    for lease in (Duration(), Duration(nanos=99_999_999), Duration(seconds=12 * 3_600, nanos=1), NEGATIVE):
        assert list(refused(ask, lease=lease)) == ["lease"]


def test_max_messages_is_1_to_the_batch_limit_and_0_is_1() -> None:
    for asked, taken in ((0, 1), (1, 1), (10, 10)):
        assert requests.get_order(GetRequest(queue="q", max_messages=asked), LIMITS).max_messages == taken
        assert requests.peek_range(PeekRequest(queue="q", max_messages=asked), LIMITS) == (1, taken)
    for asked in (11, 2**32 - 1):
        get, peek = GetRequest(queue="q", max_messages=asked), PeekRequest(queue="q", max_messages=asked)
        assert list(refused(requests.get_order, get, LIMITS)) == ["max_messages"]
        assert list(refused(requests.peek_range, peek, LIMITS)) == ["max_messages"]


def test_peek_begins_at_the_head_and_far_positions_stay_exact_numbers_in_lua() -> None:
    for asked, taken in ((0, 1), (1, 1), (2, 2), (2**64 - 1, 2**52)):
        assert requests.peek_range(PeekRequest(queue="q", from_position=asked), LIMITS) == (taken, 1)


def test_page_size_is_1_to_1000_and_0_is_100() -> None:
    for asked, taken in ((0, 100), (1, 1), (1_000, 1_000)):
        assert requests.queue_page(ListRequest(page_size=asked), LIMITS) == ("", taken, "")
    assert list(refused(requests.queue_page, ListRequest(page_size=1_001), LIMITS)) == ["page_size"]


@pytest.mark.parametrize("text", ["\x1f", "a\x1f", "a\x1fb", "\n", "\x7f", "\x9f"])
def test_what_queues_are_listed_by_has_no_control_characters(text: str) -> None:
    """None of their names has one."""
    asked = ListRequest(prefix=text, page_token=text)
    assert list(refused(requests.queue_page, asked, LIMITS)) == ["prefix", "page_token"]
    assert requests.queue_page(ListRequest(prefix="a b", page_token="é"), LIMITS) == ("a b", 100, "é")


# -- settling ---------------------------------------------------------------------------------------------------------

SETTLERS: list[tuple[str, Callable[[list[str]], Any]]] = [
    ("leases", lambda leases: requests.acked_leases(AckRequest(queue="q", leases=leases), LIMITS)),
    ("leases", lambda leases: requests.delay_order(DelayRequest(queue="q", leases=leases), LIMITS).leases),
    ("leases", lambda leases: requests.extension(ExtendRequest(queue="q", leases=leases), LIMITS)[0]),
    ("ack", lambda leases: requests.get_order(GetRequest(queue="q", ack=leases), LIMITS).ack),
]


@pytest.mark.parametrize(("field", "ask"), SETTLERS, ids=["ack", "delay", "extend", "get"])
def test_leases_may_be_any_text_of_256_bytes(field: str, ask: Callable[[list[str]], Any]) -> None:
    odd = ["", "no token", "x" * 256, "é" * 128, "\x00", "~"]
    assert ask(odd) == tuple(odd)
    for lease in ("x" * 257, "é" * 128 + "x"):
        assert list(refused(ask, ["ok", lease])) == [f"{field}[1]"]


@pytest.mark.parametrize(("field", "ask"), SETTLERS, ids=["ack", "delay", "extend", "get"])
def test_lease_batches_are_1_to_the_batch_limit(field: str, ask: Callable[[list[str]], Any]) -> None:
    assert len(ask(["l"] * 10)) == 10
    assert list(refused(ask, ["l"] * 11, error_class=TooLarge)) == [field]
    if field == "ack":
        assert ask([]) == ()
    else:
        assert refused(ask, []) == {field: "is empty"}


def delay(**fields: Any) -> Any:
    return requests.delay_order(DelayRequest(queue="q", leases=["l"], **fields), LIMITS)


def test_delay_tells_nothing_said_from_now() -> None:
    assert (delay().delay_ms, delay().until_at_ms) == (None, None)
    assert (delay(delay=Duration()).delay_ms, delay(delay=Duration()).until_at_ms) == (0, None)
    assert (delay(until=Timestamp()).delay_ms, delay(until=Timestamp()).until_at_ms) == (None, 0)
    assert delay(until=Timestamp(seconds=-5)).until_at_ms == 0
    assert delay(until=Timestamp(seconds=5, nanos=1)).until_at_ms == 5_001


def test_delay_is_0_to_366_days() -> None:
    assert delay(delay=Duration(nanos=1)).delay_ms == 1
    assert delay(delay=Duration(seconds=366 * 86_400)).delay_ms == 366 * DAY_MS
    for value in (Duration(seconds=366 * 86_400, nanos=1), NEGATIVE):
        assert list(refused(delay, delay=value)) == ["delay"]


def test_delay_reason_has_at_most_1024_bytes() -> None:
    order = delay(reason="x" * 1_024, keep_attempt=True)
    assert (order.reason, order.keep_attempt) == ("x" * 1_024, True)
    assert list(refused(delay, reason="x" * 1_025)) == ["reason"]


def test_delay_takes_leases_and_ids_together_up_to_the_batch_limit() -> None:
    def ask(leases: int, ids: int) -> Any:
        request = DelayRequest(queue="q", leases=["l"] * leases, message_ids=["m"] * ids)
        return requests.delay_order(request, LIMITS)

    for leases, ids in ((1, 0), (0, 1), (0, 10), (10, 0), (4, 6)):
        order = ask(leases, ids)
        assert (len(order.leases), len(order.message_ids)) == (leases, ids)
    assert refused(ask, 0, 0) == {"leases": "is empty"}
    for leases, ids in ((0, 11), (11, 0), (5, 6)):
        with pytest.raises(TooLarge) as caught:
            ask(leases, ids)
        assert caught.value.metadata == {"field": "leases", "limit": "10", "size": "11"}


def test_result_has_at_most_4096_bytes() -> None:
    for size in (0, 1, 4_095, 4_096):
        assert requests.acked_leases(AckRequest(queue="q", leases=["l"], result=b"r" * size), LIMITS) == ("l",)
    with pytest.raises(TooLarge) as caught:
        requests.acked_leases(AckRequest(queue="q", leases=["l"], result=b"r" * 4_097), LIMITS)
    assert caught.value.metadata == {"field": "result", "limit": "4096", "size": "4097"}


# -- messages by id, attempts, the dead -------------------------------------------------------------------------------

ID_LISTS: list[Callable[[list[str]], Any]] = [
    lambda ids: requests.withdrawn_ids(WithdrawRequest(queue="q", message_ids=ids), LIMITS),
    lambda ids: requests.delay_order(DelayRequest(queue="q", message_ids=ids), LIMITS).message_ids,
    lambda ids: admin_requests.redrive_order(RedriveRequest(queue="q", message_ids=ids), LIMITS).message_ids,
]


@pytest.mark.parametrize("ask", ID_LISTS, ids=["withdraw", "delay", "redrive"])
def test_ids_of_messages_are_senders_or_the_services_own(ask: Callable[[list[str]], Any]) -> None:
    proper = ["a", "~gen-1", "~", "x" * 200, "é" * 100, " "]
    assert ask(proper) == tuple(proper)
    for improper in ("", "x" * 201, "é" * 100 + "x", "a\x00", "\n", "\x7f"):
        assert list(refused(ask, ["ok", improper])) == ["message_ids[1]"]


@pytest.mark.parametrize("ask", ID_LISTS[::2], ids=["withdraw", "redrive"])
def test_id_batches_are_bounded(ask: Callable[[list[str]], Any]) -> None:
    assert len(ask([str(number) for number in range(10)])) == 10
    assert list(refused(ask, ["m"] * 11, error_class=TooLarge)) == ["message_ids"]


def test_withdraw_names_at_least_one_message_and_redrive_of_none_means_all() -> None:
    assert refused(ID_LISTS[0], []) == {"message_ids": "is empty"}
    assert ID_LISTS[2]([]) == ()


def test_attempt_ids_are_short_texts() -> None:
    def ask(attempt_id: str) -> str:
        return requests.get_order(GetRequest(queue="q", attempt_id=attempt_id), LIMITS).attempt_id

    for proper in ("", "a", "~", "x" * 200, "é" * 100):
        assert ask(proper) == proper
    for improper in ("x" * 201, "é" * 101, "a\n", "\x00"):
        assert list(refused(ask, improper)) == ["attempt_id"]


def test_redrive_rate_is_a_thousandth_to_a_million_and_0_is_no_limit() -> None:
    def ask(rate: float) -> float:
        return admin_requests.redrive_order(RedriveRequest(queue="q", rate=rate), LIMITS).rate

    for rate in (0.0, 0.001, 1.0, 1_000_000.0):
        assert ask(rate) == rate
    for rate in (math.nextafter(0.001, 0), -1.0, 1_000_001.0, math.inf, -math.inf, math.nan):
        assert list(refused(ask, rate)) == ["rate"]


def test_pages_of_the_dead_are_those_of_lists() -> None:
    def ask(**fields: Any) -> tuple[int, str]:
        return admin_requests.dead_page(ListDeadRequest(queue="q", **fields), LIMITS)

    for asked, taken in ((0, 100), (1, 1), (1_000, 1_000)):
        assert ask(page_size=asked) == (taken, "")
    assert list(refused(ask, page_size=1_001)) == ["page_size"]
    assert ask(page_token="t" * 256) == (100, "t" * 256)
    assert list(refused(ask, page_token="t" * 257)) == ["page_token"]


def test_check_looks_at_a_million_entries_unless_told() -> None:
    for asked, taken in ((0, 1_000_000), (1, 1), (2**64 - 1, 2**52)):
        assert admin_requests.max_entries(CheckRequest(queue="q", max_entries=asked)) == taken
