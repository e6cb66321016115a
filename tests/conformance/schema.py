"""Requests and answers of a scenario by the schema: what a driver sends and reads is protobuf's JSON, and nothing
else passes."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message_factory import GetMessageClass

from conformance.matching import Mismatch
from headway.v1 import admin_service_pb2, message_pb2, queue_service_pb2

_FILES = (queue_service_pb2.DESCRIPTOR, admin_service_pb2.DESCRIPTOR)
SERVICES = {service.name: service for file in _FILES for service in file.services_by_name.values()}
# What the layers hand out of their own: each has the fields of one message of the schema.
EVENTS: dict[str, type[Any]] = {
    "position": queue_service_pb2.Position,
    "delayed": queue_service_pb2.Position,
    "leased": queue_service_pb2.Leased,
    "finished": queue_service_pb2.Finished,
}
MESSAGE, PUT_RESULT = message_pb2.Message, message_pb2.PutResult


def every_rpc() -> set[str]:
    """As scenarios name them: `Put`, `AdminService.Pause`."""
    return {
        method.name if service.name == "QueueService" else f"{service.name}.{method.name}"
        for service in SERVICES.values()
        for method in service.methods
    }


def method_of(rpc: str) -> MethodDescriptor:
    """The RPC of a scenario's name for it. Raises KeyError."""
    service, _, name = rpc.rpartition(".")
    return SERVICES[service or "QueueService"].methods_by_name[name]


def request_of(rpc: str, request: dict[str, Any], queue: str = "") -> dict[str, Any]:
    """The request in canonical JSON, about this queue unless it names one. Raises ParseError for what is no request."""
    method = method_of(rpc)
    fields = dict(request)
    if queue and "queue" in method.input_type.fields_by_name:
        fields.setdefault("queue", queue)
    return MessageToDict(ParseDict(fields, GetMessageClass(method.input_type)()))


def answer_of(rpc: str, response: Any) -> dict[str, Any]:
    """What a driver said the response was, with the schema's names and every field that has a value without being set.

    Raises Mismatch if it is no such message.
    """
    return read(GetMessageClass(method_of(rpc).output_type), response)


def read(kind: type[Any], told: Any, *, also: tuple[str, ...] = ()) -> dict[str, Any]:
    """The same for a message of this kind; keys of `also` are a driver's own and stay as they are."""
    if not isinstance(told, dict):
        raise Mismatch(f"a {kind.__name__} is a JSON object, not {told!r}")
    try:
        message = ParseDict({key: value for key, value in told.items() if key not in also}, kind())
    except ParseError as error:
        raise Mismatch(f"not a {kind.__name__}: {error}") from None
    fields = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return fields | {key: told.get(key) for key in also}
