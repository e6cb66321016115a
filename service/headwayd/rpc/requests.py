"""From requests to orders: what is asked, checked in full, in the words of the domain.

Every function raises FieldInvalid or TooLarge with all violations, or NotServed for what this version does not do. The
queue's name is not checked here: the engine knows which names its store can hold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast

from headway.v1 import admin_service_pb2, message_pb2, queue_service_pb2
from headwayd.domain.bare import BareMessages
from headwayd.domain.limits import (
    DEFAULT_PAGE_SIZE,
    MAX_ATTEMPT_ID_BYTES,
    MAX_HEADER_KEY_BYTES,
    MAX_HEADER_VALUE_BYTES,
    MAX_HEADERS,
    MAX_ID_BYTES,
    MAX_PAGE_SIZE,
    MAX_REASON_BYTES,
    MAX_RESULT_BYTES,
    MAX_ROLE_NAME_BYTES,
    MAX_TIME_TO_LIVE_MS,
    MIN_LEASE_MS,
    SECOND_MS,
    Limits,
)
from headwayd.domain.model import OWN_ID_MARK, DelayOrder, GetOrder, NewMessage, OnDuplicate, Policy, PutOrder
from headwayd.domain.places import Progress
from headwayd.domain.standing import PLACE_MARK
from headwayd.rpc.bare_messages import MANY, BareRequest, bare_payloads, beside_payload
from headwayd.rpc.policies import masked_names, policy_of
from headwayd.rpc.validation import Checks
from headwayd.rpc.watch_requests import checked_progress

_CLOSE_WAIT_MS = 1 * SECOND_MS
_DELETE_WAIT_MS = 5 * SECOND_MS
# No line is longer, and Lua's numbers are exact up to here: a position beyond shows the same, nothing.
_LAST_POSITION = 2**52
# An id of fewer bytes than this has so many around it in a message: a tag, and its length.
_SHORT_ID, _AROUND_ID = 128, 2

_ON_DUPLICATE: Mapping[int, OnDuplicate] = {
    message_pb2.ON_DUPLICATE_UNSPECIFIED: OnDuplicate.REJECT,
    message_pb2.ON_DUPLICATE_REJECT: OnDuplicate.REJECT,
    message_pb2.ON_DUPLICATE_KEEP: OnDuplicate.KEEP,
    message_pb2.ON_DUPLICATE_REPLACE: OnDuplicate.REPLACE,
}


def new_policy(request: queue_service_pb2.CreateRequest, limits: Limits) -> Policy:
    """The policy that Create asks for."""
    checks = Checks(limits)
    policy = policy_of(request.policy, checks)
    checks.finish()
    return policy


def changed_policy(request: queue_service_pb2.UpdateRequest, limits: Limits) -> tuple[Policy, tuple[str, ...]]:
    """The values that Update asks for, and which of the policy's fields they are."""
    checks = Checks(limits)
    names = masked_names(request.update_mask.paths, checks)
    policy = policy_of(request.policy, checks, names=names)
    checks.finish()
    return policy, names


def queue_page(request: queue_service_pb2.ListRequest, limits: Limits) -> tuple[str, int, str]:
    """What the names of a page of List begin with, how many queues it holds at most, and where it begins."""
    checks = Checks(limits)
    prefix = checks.line("prefix", request.prefix)
    size = checked_page_size(request, checks)
    token = checks.line("page_token", request.page_token)
    checks.finish()
    return prefix, size, token


def checked_page_size(
    request: queue_service_pb2.ListRequest | admin_service_pb2.ListDeadRequest, checks: Checks
) -> int:
    """How many items a page holds at most."""
    return checks.count("page_size", request.page_size, highest=MAX_PAGE_SIZE, default=DEFAULT_PAGE_SIZE)


def close_wait_ms(request: queue_service_pb2.CloseRequest, limits: Limits) -> int:
    """How long Close waits for a foreign producer."""
    return _only_wait_ms(request, limits, default_ms=_CLOSE_WAIT_MS)


def delete_wait_ms(request: queue_service_pb2.DeleteRequest, limits: Limits) -> int:
    """How long Delete waits for foreign clients."""
    return _only_wait_ms(request, limits, default_ms=_DELETE_WAIT_MS)


def put_order(request: queue_service_pb2.PutRequest | BareRequest, limits: Limits) -> PutOrder:
    """What Put asks for."""
    checks = Checks(limits)
    on_duplicate = _on_duplicate(request.on_duplicate, checks)
    order = PutOrder(
        queue=request.queue,
        messages=_new_messages(request, checks),
        wait_ms=_wait_ms(cast(queue_service_pb2.PutRequest, request), checks),
        on_duplicate=on_duplicate,
        all_or_nothing=request.all_or_nothing,
        producer=checks.text("producer", request.producer, max_bytes=MAX_ROLE_NAME_BYTES),
    )
    checks.finish()
    return order


def batch_order(request: queue_service_pb2.ProduceRequest | BareRequest, queue: str, limits: Limits) -> PutOrder:
    """What a batch of a Produce stream asks for, on the queue that it is for; how long it may wait is not decided
    here."""
    checks = Checks(limits)
    on_duplicate = _on_duplicate(request.on_duplicate, checks)
    order = PutOrder(queue=queue, messages=_new_messages(request, checks), on_duplicate=on_duplicate)
    checks.finish()
    return order


def get_order(request: queue_service_pb2.GetRequest, limits: Limits) -> GetOrder:
    """What Get asks for."""
    checks = Checks(limits)
    if request.place and not request.stand:
        checks.invalid("place", "needs stand")
    order = GetOrder(
        queue=request.queue,
        max_messages=_max_messages(request, checks),
        max_bytes=limits.max_response_bytes,
        wait_ms=_wait_ms(request, checks),
        lease_ms=_lease_ms(request, checks),
        consumer=checks.text("consumer", request.consumer, max_bytes=MAX_ROLE_NAME_BYTES),
        ack=checks.leases("ack", request.ack, may_be_empty=True),
        attempt_id=request.attempt_id,
        stands=request.stand,
        place=place(request.place, "place", checks),
    )
    if request.attempt_id:
        checks.label("attempt_id", request.attempt_id, max_bytes=MAX_ATTEMPT_ID_BYTES)
    checks.finish()
    return order


def place(text: str, path: str, checks: Checks) -> str:
    """A place in line, as the service named it. Notes one that the service never gives."""
    if text and not (text.startswith(PLACE_MARK) and len(text) <= MAX_ID_BYTES and text.isascii()):
        checks.invalid(path, "is no place of this service")
    return text


def acked_leases(request: queue_service_pb2.AckRequest, limits: Limits) -> Sequence[str]:
    """The leases that Ack settles."""
    checks = Checks(limits)
    leases = checks.leases("leases", request.leases)
    if len(request.result) > MAX_RESULT_BYTES:
        checks.too_large("result", "bytes", size=len(request.result), limit=MAX_RESULT_BYTES)
    checks.finish()
    return leases


def delay_order(request: queue_service_pb2.DelayRequest, limits: Limits) -> DelayOrder:
    """What Delay asks for."""
    checks = Checks(limits)
    leases: Sequence[str] = ()
    message_ids: tuple[str, ...] = ()
    if checks.batch_size("leases", len(request.leases) + len(request.message_ids)):
        leases = checks.leases("leases", request.leases, may_be_empty=True)
        message_ids = checks.message_ids("message_ids", request.message_ids, may_be_empty=True)
    delay_ms = until_at_ms = None
    match request.WhichOneof("available"):
        case "delay":
            delay_ms = checks.span_ms(
                request, "delay", "delay", lowest_ms=0, highest_ms=limits.max_delay_ms, default_ms=0
            )
        case "until":
            until_at_ms = checks.instant_ms(request.until, "until")
    order = DelayOrder(
        queue=request.queue,
        leases=leases,
        message_ids=message_ids,
        delay_ms=delay_ms,
        until_at_ms=until_at_ms,
        reason=checks.text("reason", request.reason, max_bytes=MAX_REASON_BYTES),
        keep_attempt=request.keep_attempt,
    )
    checks.finish()
    return order


def extension(request: queue_service_pb2.ExtendRequest, limits: Limits) -> tuple[Sequence[str], int, Progress | None]:
    """The leases that Extend keeps alive, for how many milliseconds (0 is the queue's policy), and how far the work has
    come (None: nothing is told)."""
    checks = Checks(limits)
    leases = checks.leases("leases", request.leases)
    lease_ms = _lease_ms(request, checks)
    progress = None
    if request.HasField("progress"):
        progress = checked_progress(request.progress, checks)
    checks.finish()
    return leases, lease_ms, progress


def withdrawn_ids(request: queue_service_pb2.WithdrawRequest, limits: Limits) -> tuple[str, ...]:
    """The ids of the messages that Withdraw cancels."""
    checks = Checks(limits)
    ids = checks.message_ids("message_ids", request.message_ids)
    checks.finish()
    return ids


def peek_range(request: queue_service_pb2.PeekRequest, limits: Limits) -> tuple[int, int]:
    """The position where Peek begins, and how many messages it shows at most."""
    checks = Checks(limits)
    max_messages = _max_messages(request, checks)
    checks.finish()
    return min(request.from_position or 1, _LAST_POSITION), max_messages


def _on_duplicate(value: int, checks: Checks) -> OnDuplicate:
    known = _ON_DUPLICATE.get(value)
    if known is None:
        checks.invalid("on_duplicate", f"{value} is no value of OnDuplicate")
        return OnDuplicate.REJECT
    return known


def _new_messages(
    request: queue_service_pb2.PutRequest | queue_service_pb2.ProduceRequest | BareRequest, checks: Checks
) -> Sequence[NewMessage]:
    most = checks.limits.max_message_bytes
    count = len(request.payloads) if isinstance(request, BareRequest) else len(request.messages)
    if not checks.batch_size("messages", count):
        return ()
    if isinstance(request, BareRequest):
        if request.size <= most:
            return BareMessages(request.payloads, request.size)
    elif count >= MANY and (payloads := bare_payloads(request, max_bytes=most)) is not None:
        return BareMessages(payloads)
    return [_new_message(message, index, checks) for index, message in enumerate(request.messages)]


def _new_message(message: message_pb2.Message, index: int, checks: Checks) -> NewMessage:
    payload = message.payload
    size = len(payload)
    message_id = message.id
    besides = beside_payload(message, size)
    if size + besides <= checks.limits.max_message_bytes and (
        not besides or (besides == _AROUND_ID + len(message_id) and _is_plain_id(message_id))
    ):
        return NewMessage(payload, message_id)  # it has nothing else
    if message_id:
        size += _checked_id(message_id, index, checks)
    headers = b""
    if message.headers:
        size += _checked_headers(message.headers, index, checks)
        headers = message_pb2.Message(headers=message.headers).SerializeToString(deterministic=True)
    if size > checks.limits.max_message_bytes:
        checks.too_large(f"messages[{index}]", "bytes", size=size, limit=checks.limits.max_message_bytes)
    time_to_live_ms = checks.span_ms(
        message,
        "time_to_live",
        f"messages[{index}].time_to_live",
        lowest_ms=1,
        highest_ms=MAX_TIME_TO_LIVE_MS,
        default_ms=0,
    )
    delay_ms = not_before_at_ms = 0
    match message.WhichOneof("available"):
        case "delay":
            path = f"messages[{index}].delay"
            delay_ms = checks.span_ms(
                message, "delay", path, lowest_ms=0, highest_ms=checks.limits.max_delay_ms, default_ms=0
            )
        case "not_before":
            not_before_at_ms = checks.instant_ms(message.not_before, f"messages[{index}].not_before")
    return NewMessage(
        payload=payload,
        id=message_id,
        headers=headers,
        delay_ms=delay_ms,
        not_before_at_ms=not_before_at_ms,
        time_to_live_ms=time_to_live_ms,
    )


def _is_plain_id(message_id: str) -> bool:
    """Whether nothing can be wrong with it. What is not ASCII, or long, has to be looked at more closely."""
    return (
        0 < len(message_id) < _SHORT_ID
        and message_id.isascii()
        and message_id.isprintable()
        and message_id[0] != OWN_ID_MARK
    )


def _checked_id(message_id: str, index: int, checks: Checks) -> int:
    """Notes what is wrong with an id; its size in bytes."""
    path = f"messages[{index}].id"
    if message_id.startswith(OWN_ID_MARK):
        checks.invalid(path, f"begins with {OWN_ID_MARK!r}, as only ids made by the service do")
    checks.label(path, message_id, max_bytes=MAX_ID_BYTES)
    return len(message_id.encode())


def _checked_headers(headers: Mapping[str, str], index: int, checks: Checks) -> int:
    """Notes what is wrong with a message's headers; their size in bytes."""
    if len(headers) > MAX_HEADERS:
        checks.invalid(f"messages[{index}].headers", f"has {len(headers)} pairs, at most {MAX_HEADERS} are accepted")
        return 0
    size = 0
    for key, value in headers.items():
        if not _is_plain_header(key, value):  # only then anybody may be told its path, which takes longest to make
            path = f"messages[{index}].headers[{json.dumps(key, ensure_ascii=False)}]"
            checks.label(path, key, max_bytes=MAX_HEADER_KEY_BYTES)
            checks.text(path, value, max_bytes=MAX_HEADER_VALUE_BYTES)
        size += len(key.encode()) + len(value.encode())
    return size


def _is_plain_header(key: str, value: str) -> bool:
    """Whether nothing can be wrong with it. A character has at most 4 bytes."""
    return 0 < len(key) * 4 <= MAX_HEADER_KEY_BYTES and key.isprintable() and len(value) * 4 <= MAX_HEADER_VALUE_BYTES


def _only_wait_ms(
    request: queue_service_pb2.CloseRequest | queue_service_pb2.DeleteRequest, limits: Limits, *, default_ms: int
) -> int:
    checks = Checks(limits)
    wait_ms = _wait_ms(request, checks, default_ms=min(default_ms, limits.max_wait_ms))
    checks.finish()
    return wait_ms


def _wait_ms(
    request: queue_service_pb2.PutRequest
    | queue_service_pb2.GetRequest
    | queue_service_pb2.CloseRequest
    | queue_service_pb2.DeleteRequest,
    checks: Checks,
    *,
    default_ms: int = 0,
) -> int:
    if not request.HasField("wait"):
        return default_ms
    return checks.span_ms(
        request, "wait", "wait", lowest_ms=0, highest_ms=checks.limits.max_wait_ms, default_ms=default_ms
    )


def _lease_ms(request: queue_service_pb2.GetRequest | queue_service_pb2.ExtendRequest, checks: Checks) -> int:
    """0 if it is the queue's policy that counts."""
    if not request.HasField("lease"):
        return 0
    return checks.span_ms(
        request, "lease", "lease", lowest_ms=MIN_LEASE_MS, highest_ms=checks.limits.max_lease_ms, default_ms=0
    )


def _max_messages(request: queue_service_pb2.GetRequest | queue_service_pb2.PeekRequest, checks: Checks) -> int:
    return checks.count("max_messages", request.max_messages, highest=checks.limits.max_batch_messages, default=1)
