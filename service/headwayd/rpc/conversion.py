"""From what the engine answers to replies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import structlog
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtoMessage

from headway.v1 import admin_service_pb2, message_pb2, queue_pb2, queue_service_pb2
from headwayd.domain.columns import FirstAcks, FirstDeliveries
from headwayd.domain.consuming import ToldConsumer
from headwayd.domain.joined import Joined
from headwayd.domain.limits import MAX_HEADER_KEY_BYTES, MAX_HEADER_VALUE_BYTES, MAX_HEADERS, Limits
from headwayd.domain.model import (
    Checked,
    Counts,
    DeadPage,
    Delivery,
    Peeked,
    PutCode,
    PutOutcome,
    Queue,
    Role,
    Settlement,
    StoreFacts,
    WithdrawOutcome,
)
from headwayd.domain.places import LeasedMessage
from headwayd.domain.standing import GetOutcome, Standing
from headwayd.rpc.columns import first_acks, first_deliveries
from headwayd.rpc.encoded import Encoded, Reply
from headwayd.rpc.hint_conversion import set_eta, set_hints
from headwayd.rpc.incidents import as_told
from headwayd.rpc.policies import policy_message
from headwayd.rpc.put_results import results_in_bytes
from headwayd.rpc.spans import duration, set_duration, set_timestamp, timestamp
from headwayd.rpc.status import item_status
from headwayd.rpc.text import clean_text

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

log: Any = structlog.get_logger(__name__)

_WORTH_BYTES = 4  # results; fewer are cheaper by the schema's own code
# Counts whose names and units are the same on both sides; `oldest_age` is the one that differs.
_PLAIN_COUNTS = tuple(
    name for name in Counts.__dataclass_fields__ if name in queue_pb2.Counts.DESCRIPTOR.fields_by_name
)


def queue_message(queue: Queue) -> queue_pb2.Queue:
    """One queue."""
    return queue_pb2.Queue(
        name=queue.name,
        policy=policy_message(queue.policy),
        closed=queue.is_closed,
        paused=queue.is_paused,
        counts=counts_message(queue.counts),
        created_at=timestamp(queue.created_at_ms),
        roles=roles_message(queue.producer, queue.consumer),
        durability=queue.durability,
        generation=queue.generation,
    )


def counts_message(counts: Counts) -> queue_pb2.Counts:
    """A queue's numbers."""
    message = queue_pb2.Counts(**{name: getattr(counts, name) for name in _PLAIN_COUNTS})
    if counts.oldest_age_ms is not None:
        set_duration(message.oldest_age, counts.oldest_age_ms)
    return message


def roles_message(producer: Role, consumer: Role) -> queue_pb2.Roles:
    """Both roles. The holders' names were written by foreign clients and may be any bytes."""
    return queue_pb2.Roles(
        producer=queue_pb2.Role(taken=producer.is_taken, holder=clean_text(producer.holder)),
        consumer=queue_pb2.Role(taken=consumer.is_taken, holder=clean_text(consumer.holder)),
    )


def put_response(outcomes: Sequence[PutOutcome]) -> Reply:
    """One result per message, in order."""
    if (in_bytes := _results_in_bytes(outcomes, queue_service_pb2.PutResponse.RESULTS_FIELD_NUMBER)) is not None:
        return Encoded(queue_service_pb2.PutResponse, in_bytes)
    response = queue_service_pb2.PutResponse()
    _fill_results(response, outcomes, "Put")
    return response


def produce_response(batch: int, outcomes: Sequence[PutOutcome]) -> Reply:
    """The answer to a batch: one result per message, in order."""
    response = queue_service_pb2.ProduceResponse(batch=batch)
    if (in_bytes := _results_in_bytes(outcomes, queue_service_pb2.ProduceResponse.RESULTS_FIELD_NUMBER)) is not None:
        return Encoded(queue_service_pb2.ProduceResponse, response.SerializeToString() + in_bytes)
    _fill_results(response, outcomes, "Produce")
    return response


def _results_in_bytes(outcomes: Sequence[PutOutcome], field: int) -> bytes | None:
    return results_in_bytes(outcomes, field) if type(outcomes) is Joined and len(outcomes) >= _WORTH_BYTES else None


def _fill_results(
    response: queue_service_pb2.PutResponse | queue_service_pb2.ProduceResponse,
    outcomes: Sequence[PutOutcome],
    method: str,
) -> None:
    add = response.results.add
    for outcome in outcomes:
        result = add(id=outcome.id, ticket=outcome.ticket, position=outcome.position)
        if outcome.code is PutCode.KEPT:
            result.deduplicated = True
            result.body_differs = outcome.body_differs
        elif outcome.error is not None:
            result.error.CopyFrom(item_status(as_told(outcome.error, method)))


def get_response(outcome: GetOutcome) -> Reply:
    """What was leased, and what became of the leases that were settled."""
    response = queue_service_pb2.GetResponse()
    if outcome.standing is not None:
        fill_standing(response.standing, outcome.standing)
    elif (in_bytes := _in_columns(response, outcome.deliveries, outcome.settled)) is not None:
        return Encoded(queue_service_pb2.GetResponse, in_bytes)
    add_deliveries(response, outcome.deliveries)
    add_results(response, "settled", outcome.settled)
    return response


def consume_response(told: ToldConsumer) -> Reply:
    """What a consumer's stream is told at once."""
    response = queue_service_pb2.ConsumeResponse(drained=told.is_drained)
    if told.standing is not None:
        fill_standing(response.standing, told.standing)
    elif not told.is_drained and (in_bytes := _in_columns(response, told.deliveries, told.settled)) is not None:
        return Encoded(queue_service_pb2.ConsumeResponse, in_bytes)
    add_deliveries(response, told.deliveries)
    add_results(response, "settled", told.settled)
    return response


def _in_columns(
    reply: queue_service_pb2.GetResponse | queue_service_pb2.ConsumeResponse,
    deliveries: Sequence[Delivery],
    settled: Sequence[Settlement],
) -> bytes | None:
    """The bytes of a reply that has nothing else, if all of it is kept by columns. If not, nothing is written: it would
    be for nothing."""
    if (deliveries and type(deliveries) is not FirstDeliveries) or (settled and type(settled) is not FirstAcks):
        return None
    of = reply.DESCRIPTOR
    given = first_deliveries(of, "deliveries", cast(FirstDeliveries, deliveries)) if deliveries else b""
    acks = first_acks(of, "settled", cast(FirstAcks, settled)) if settled else b""
    return None if given is None or acks is None else (given + acks) or None


def fill_standing(entry: message_pb2.Standing, standing: Standing) -> None:
    """A place in line."""
    entry.place = standing.place
    entry.position = standing.position
    entry.length = standing.length
    entry.limit = standing.limit
    set_hints(entry, standing.hints)
    set_eta(entry.eta, standing.eta)


def peek_response(messages: Sequence[Peeked], *, without_payloads: bool) -> queue_service_pb2.PeekResponse:
    """Waiting messages, in order."""
    response = queue_service_pb2.PeekResponse()
    for peeked in messages:
        entry = response.messages.add(
            ticket=peeked.ticket,
            position=peeked.position,
            failures=peeked.failures,
            last_error=clean_text(peeked.last_error),
        )
        payload = b"" if without_payloads else peeked.payload
        _fill_message(entry.message, id=peeked.id, payload=payload, headers=peeked.headers)
        if peeked.put_at_ms is not None:
            set_timestamp(entry.put_at, peeked.put_at_ms)
    return response


def withdraw_response(outcomes: Iterable[WithdrawOutcome]) -> queue_service_pb2.WithdrawResponse:
    """One result per id, in order."""
    response = queue_service_pb2.WithdrawResponse()
    for outcome in outcomes:
        result = response.results.add(id=outcome.id, withdrawn=outcome.error is None)
        if outcome.error is not None:
            result.error.CopyFrom(item_status(outcome.error))
    return response


def leased_response(messages: Sequence[LeasedMessage]) -> admin_service_pb2.ListLeasedResponse:
    """Messages that are being worked on, in the order in which their leases end."""
    response = admin_service_pb2.ListLeasedResponse()
    for leased in messages:
        entry = response.messages.add(
            id=clean_text(leased.id),
            ticket=leased.ticket,
            consumer=clean_text(leased.consumer),
            attempt=leased.attempt,
            lease_expires_at=timestamp(leased.lease_expires_at_ms),
        )
        if leased.leased_at_ms is not None:
            set_timestamp(entry.leased_at, leased.leased_at_ms)
        if leased.progress is not None:
            entry.progress.fraction = leased.progress.fraction
            entry.progress.note = clean_text(leased.progress.note)
        if leased.put_at_ms is not None:
            set_timestamp(entry.put_at, leased.put_at_ms)
    return response


def dead_response(page: DeadPage, *, without_payloads: bool) -> admin_service_pb2.ListDeadResponse:
    """Dead messages, in the order they died."""
    response = admin_service_pb2.ListDeadResponse(next_page_token=page.next_page_token)
    for dead in page.messages:
        entry = response.messages.add(
            failures=dead.failures,
            died_at=timestamp(dead.died_at_ms),
            cause=dead.cause,
            last_error=clean_text(dead.last_error),
            replays=dead.replays,
        )
        payload = b"" if without_payloads else dead.payload
        _fill_message(entry.message, id=dead.id, payload=payload, headers=dead.headers)
        if dead.put_at_ms is not None:
            set_timestamp(entry.put_at, dead.put_at_ms)
    return response


def check_response(checked: Checked) -> admin_service_pb2.CheckResponse:
    """What a check found."""
    return admin_service_pb2.CheckResponse(
        findings=[clean_text(finding) for finding in checked.findings],
        entries=checked.entries,
        counts=counts_message(checked.counts),
    )


def add_results(reply: ProtoMessage, name: str, settled: Sequence[Settlement]) -> None:
    """Fills the field `name` of a reply: one result per lease, and per message named by id, in order."""
    if not settled:
        return
    if (
        type(settled) is FirstAcks
        and (encoded := first_acks(cast(Descriptor, reply.DESCRIPTOR), name, settled)) is not None
    ):
        reply.MergeFromString(encoded)
        return
    results: RepeatedCompositeFieldContainer[message_pb2.SettleResult] = getattr(reply, name)
    for lease, how, attempts, available_at_ms, message_id in settled:
        # The numbers of both are the same (`domain.model.Settled`), and to ask an enumeration for its value takes long.
        result = results.add(settled=how, lease=lease)
        if message_id:
            result.id = message_id
        if attempts:
            result.attempts = attempts
        if available_at_ms is not None:
            set_timestamp(result.available_at, available_at_ms)


def limits_message(limits: Limits) -> admin_service_pb2.Limits:
    """What the service accepts."""
    return admin_service_pb2.Limits(
        max_message_bytes=limits.max_message_bytes,
        max_batch_messages=limits.max_batch_messages,
        max_request_bytes=limits.max_request_bytes,
        max_response_bytes=limits.max_response_bytes,
        max_wait=duration(limits.max_wait_ms),
        max_lease=duration(limits.max_lease_ms),
        max_delay=duration(limits.max_delay_ms),
        max_headers=MAX_HEADERS,
        max_header_key_bytes=MAX_HEADER_KEY_BYTES,
        max_header_value_bytes=MAX_HEADER_VALUE_BYTES,
        max_metadata_bytes=limits.max_metadata_bytes,
        max_running_calls=limits.max_running_calls,
        max_pending_calls=limits.max_pending_calls,
        max_streams=limits.max_streams,
        max_streams_per_connection=limits.max_streams_per_connection,
        max_connections=limits.max_connections,
        max_running_bytes=limits.max_running_bytes,
    )


def store_message(store: StoreFacts) -> admin_service_pb2.Store:
    """What the store is and promises."""
    return admin_service_pb2.Store(
        kind=store.kind,
        version=store.version,
        reachable=store.is_reachable,
        embedded=store.is_embedded,
        durability=store.durability,
        warnings=store.warnings,
        prefix=store.prefix,
    )


def add_deliveries(
    reply: queue_service_pb2.GetResponse | queue_service_pb2.ConsumeResponse | queue_service_pb2.Granted,
    deliveries: Sequence[Delivery],
) -> None:
    """Leased messages. Those of one step mostly have the same times: of several these are written once and copied,
    which halves what a message costs here."""
    if not deliveries:
        return
    if type(deliveries) is FirstDeliveries:
        encoded = first_deliveries(reply.DESCRIPTOR, "deliveries", deliveries)
        if encoded is not None:
            reply.MergeFromString(encoded)
            return
    entries = reply.deliveries
    are_several = len(deliveries) > 1
    alike: tuple[int, int, int | None, int | None] | None = None
    times = message_pb2.Delivery()
    for message_id, payload, headers, lease, expires_at_ms, attempt, ticket, put_at_ms, waited_ms in deliveries:
        entry = entries.add()
        if not are_several:
            _set_times(entry, expires_at_ms, attempt, put_at_ms, waited_ms)
        else:
            if alike != (alike := (expires_at_ms, attempt, put_at_ms, waited_ms)):
                times.Clear()
                _set_times(times, expires_at_ms, attempt, put_at_ms, waited_ms)
            entry.CopyFrom(times)
        _fill_message(entry.message, id=message_id, payload=payload, headers=headers)
        entry.lease = lease
        entry.ticket = ticket


def _set_times(
    entry: message_pb2.Delivery, expires_at_ms: int, attempt: int, put_at_ms: int | None, waited_ms: int | None
) -> None:
    entry.attempt = attempt
    set_timestamp(entry.lease_expires_at, expires_at_ms)
    if put_at_ms is not None:
        set_timestamp(entry.put_at, put_at_ms)
    if waited_ms is not None:
        set_duration(entry.waited, waited_ms)


def _fill_message(message: message_pb2.Message, *, id: str, payload: bytes, headers: bytes) -> None:  # noqa: A002 - the field's name
    """`headers` are the bytes that `requests` encoded; a message whose headers were damaged is delivered without them,
    because failing the whole call would fail it for ever."""
    if headers:
        try:
            message.MergeFromString(headers)
        except DecodeError:
            log.warning("message_headers_unreadable", message_id=id)
            message.Clear()
    message.id = id
    message.payload = payload
