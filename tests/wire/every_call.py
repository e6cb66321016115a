"""One sound request of every served call that names a queue, for tests that hold for all of them."""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.message import Message as ProtoMessage

from headway.v1 import admin_service_pb2, queue_pb2, queue_service_pb2
from wire.calls import message, span

QUEUE_SERVICE = "/headway.v1.QueueService/"
ADMIN_SERVICE = "/headway.v1.AdminService/"

REQUESTS: dict[str, Callable[[str], ProtoMessage]] = {
    QUEUE_SERVICE + "Create": lambda queue: queue_service_pb2.CreateRequest(queue=queue),
    QUEUE_SERVICE + "Describe": lambda queue: queue_service_pb2.DescribeRequest(queue=queue),
    QUEUE_SERVICE + "Update": lambda queue: queue_service_pb2.UpdateRequest(
        queue=queue, policy=queue_pb2.Policy(limit=3), update_mask=FieldMask(paths=["limit"])
    ),
    QUEUE_SERVICE + "Close": lambda queue: queue_service_pb2.CloseRequest(queue=queue, wait=span(100)),
    QUEUE_SERVICE + "Delete": lambda queue: queue_service_pb2.DeleteRequest(queue=queue, wait=span(100)),
    QUEUE_SERVICE + "Put": lambda queue: queue_service_pb2.PutRequest(queue=queue, messages=[message(b"one")]),
    QUEUE_SERVICE + "Get": lambda queue: queue_service_pb2.GetRequest(queue=queue),
    QUEUE_SERVICE + "Ack": lambda queue: queue_service_pb2.AckRequest(queue=queue, leases=["made-up"]),
    QUEUE_SERVICE + "Delay": lambda queue: queue_service_pb2.DelayRequest(queue=queue, leases=["made-up"]),
    QUEUE_SERVICE + "Extend": lambda queue: queue_service_pb2.ExtendRequest(queue=queue, leases=["made-up"]),
    QUEUE_SERVICE + "Withdraw": lambda queue: queue_service_pb2.WithdrawRequest(queue=queue, message_ids=["unknown"]),
    QUEUE_SERVICE + "Peek": lambda queue: queue_service_pb2.PeekRequest(queue=queue),
    # A stream, which is done with its first reply where nobody knows the message.
    QUEUE_SERVICE + "WatchPosition": lambda queue: queue_service_pb2.WatchPositionRequest(
        queue=queue, messages=queue_service_pb2.MessageIds(ids=["unknown"])
    ),
    QUEUE_SERVICE + "WatchQueue": lambda queue: queue_service_pb2.WatchQueueRequest(queue=queue),
    ADMIN_SERVICE + "Pause": lambda queue: admin_service_pb2.PauseRequest(queue=queue),
    ADMIN_SERVICE + "Resume": lambda queue: admin_service_pb2.ResumeRequest(queue=queue),
    ADMIN_SERVICE + "Purge": lambda queue: admin_service_pb2.PurgeRequest(queue=queue),
    ADMIN_SERVICE + "Repair": lambda queue: admin_service_pb2.RepairRequest(queue=queue),
    ADMIN_SERVICE + "Check": lambda queue: admin_service_pb2.CheckRequest(queue=queue),
    ADMIN_SERVICE + "ListLeased": lambda queue: admin_service_pb2.ListLeasedRequest(queue=queue),
    ADMIN_SERVICE + "ListDead": lambda queue: admin_service_pb2.ListDeadRequest(queue=queue),
    # A stream, which is done with its first reply where nothing is dead.
    ADMIN_SERVICE + "Redrive": lambda queue: admin_service_pb2.RedriveRequest(queue=queue),
}
# Served, too, but they name no queue.
WITHOUT_QUEUE = {QUEUE_SERVICE + "List", ADMIN_SERVICE + "GetServerInfo"}
# Streams without an end of their own: their first reply will do.
ENDLESS = {QUEUE_SERVICE + "WatchQueue"}
# Streams of requests: they have tests of their own.
BOTH_WAYS = {QUEUE_SERVICE + "Produce", QUEUE_SERVICE + "Consume"}


def short(method: str) -> str:
    """The name without the service."""
    return method.rpartition("/")[2]
