"""The Python client of Headway: what `import headway` offers, loaded only when it is first used.

`headway.v1` holds the generated messages and stubs and needs nothing from here: importing it does not import the
client. A first look:

    async with headway.connect() as client:
        queue = client.queue("mail")
        await queue.create(bound=1000)
        await queue.put(b"hello")
        async with queue.lease(wait=timedelta(seconds=5)) as lease:
            if lease is not None:
                print(lease.payload)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway._client import Client, connect
    from headway._lease import Lease
    from headway._places import (
        Blocked,
        Delayed,
        Eta,
        Finished,
        Granted,
        Leased,
        Outcome,
        Place,
        QueueNumbers,
        Turn,
        Update,
        Waiting,
    )
    from headway._policy import PolicyFields
    from headway._producing import Producer
    from headway._queue import Queue
    from headway._stand import Stand
    from headway.core.error import HeadwayError, Violation
    from headway.core.errors import (
        AlreadyExists,
        ClientClosed,
        DeadlineExceeded,
        DuplicateMessage,
        Exhausted,
        FieldInvalid,
        Internal,
        InvalidArgument,
        LeaseGone,
        LeaseStale,
        MessageFinished,
        MessageLeased,
        MessageNotFound,
        NameRefused,
        NotDurable,
        NotFound,
        NotImplementedByService,
        OutcomeUnknown,
        Overloaded,
        PermissionDenied,
        PlaceLost,
        PollTooSoon,
        PreconditionFailed,
        QueueClosed,
        QueueDeleted,
        QueueDrained,
        QueueExists,
        QueueFull,
        QueueNotFound,
        QueuePaused,
        QuotaExceeded,
        RoleInUse,
        ShuttingDown,
        StoreFull,
        StoreUnavailable,
        TooLarge,
        Unauthenticated,
        Unavailable,
    )
    from headway.v1.message_pb2 import Message, OnDuplicate
    from headway.v1.queue_pb2 import Policy, Poll, Retry

# Where each name lives; what is exported and not named here is an error.
_HOMES: dict[str, str] = {
    "Client": "headway._client",
    "connect": "headway._client",
    "Queue": "headway._queue",
    "Lease": "headway._lease",
    "Producer": "headway._producing",
    "Update": "headway._places",
    "Waiting": "headway._places",
    "Leased": "headway._places",
    "Delayed": "headway._places",
    "Finished": "headway._places",
    "Outcome": "headway._places",
    "Eta": "headway._places",
    "QueueNumbers": "headway._places",
    "Stand": "headway._stand",
    "Turn": "headway._places",
    "Place": "headway._places",
    "Granted": "headway._places",
    "Blocked": "headway._places",
    "PolicyFields": "headway._policy",
    "HeadwayError": "headway.core.error",
    "Violation": "headway.core.error",
    "Message": "headway.v1.message_pb2",
    "OnDuplicate": "headway.v1.message_pb2",
    "Policy": "headway.v1.queue_pb2",
    "Poll": "headway.v1.queue_pb2",
    "Retry": "headway.v1.queue_pb2",
}

__all__ = [  # noqa: RUF022 - grouped as a reader looks for them: the client first, its errors after it
    "connect",
    "Client",
    "Queue",
    "Lease",
    "Producer",
    "Update",
    "Waiting",
    "Leased",
    "Delayed",
    "Finished",
    "Outcome",
    "Eta",
    "QueueNumbers",
    "Stand",
    "Turn",
    "Place",
    "Granted",
    "Blocked",
    "PolicyFields",
    "Message",
    "OnDuplicate",
    "Policy",
    "Poll",
    "Retry",
    "AlreadyExists",
    "ClientClosed",
    "DeadlineExceeded",
    "DuplicateMessage",
    "Exhausted",
    "FieldInvalid",
    "HeadwayError",
    "Internal",
    "InvalidArgument",
    "LeaseGone",
    "LeaseStale",
    "MessageFinished",
    "MessageLeased",
    "MessageNotFound",
    "NameRefused",
    "NotDurable",
    "NotFound",
    "NotImplementedByService",
    "OutcomeUnknown",
    "Overloaded",
    "PermissionDenied",
    "PlaceLost",
    "PollTooSoon",
    "PreconditionFailed",
    "QueueClosed",
    "QueueDeleted",
    "QueueDrained",
    "QueueExists",
    "QueueFull",
    "QueueNotFound",
    "QueuePaused",
    "QuotaExceeded",
    "RoleInUse",
    "ShuttingDown",
    "StoreFull",
    "StoreUnavailable",
    "TooLarge",
    "Unauthenticated",
    "Unavailable",
    "Violation",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name, "headway.core.errors")
    if name not in __all__:
        raise AttributeError(f"module 'headway' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
