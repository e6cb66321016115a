"""Every name of the service's spans, their attributes and events. docs/tracing.md explains them, and a test compares.

After OpenTelemetry's conventions for messaging as of version 1.39
(https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/), which are still moving: so they are spelled
here and nowhere else. What they have no word for begins with `headway.`.
"""

from __future__ import annotations

from typing import Final

from headwayd.domain import tracing

# -- spans: "OPERATION QUEUE"; RPCs give theirs the RPC's name --------------------------------------------------------

WAIT: Final = "Wait"  # a message in line, from its put to its lease
WORK: Final = "Work"  # a message with a worker, from its lease to how that ended

# -- attributes -------------------------------------------------------------------------------------------------------

SYSTEM: Final = "messaging.system"
DESTINATION: Final = "messaging.destination.name"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGE_ID: Final = "messaging.message.id"
BATCH_COUNT: Final = "messaging.batch.message_count"
ERROR_TYPE: Final = "error.type"
ATTEMPT: Final = "headway.attempt"
TICKET: Final = "headway.ticket"
POSITION: Final = "headway.position"
SETTLED: Final = "headway.settled"
DEDUPLICATED: Final = "headway.deduplicated_count"
REFUSED: Final = "headway.refused_count"
EXTENDED: Final = "headway.extended_count"

# -- events -----------------------------------------------------------------------------------------------------------

MOVED: Final = "headway.moved"  # with POSITION: where a message, or who waits for one, stood in line at that instant

# -- values -----------------------------------------------------------------------------------------------------------

OUR_SYSTEM: Final = "headway"
SEND, RECEIVE, PROCESS, SETTLE = "send", "receive", "process", "settle"
# Of ERROR_TYPE, besides the names of `headway.v1.ErrorReason`.
CANCELLED: Final = tracing.CANCELLED  # the caller went away
# Of SETTLED, besides the names of `headway.v1.Settled`.
STREAM_ENDED: Final = "STREAM_ENDED"  # the stream that had the lease ended, so the message went back
UNSEEN: Final = "UNSEEN"  # this process saw no end of the lease in its time: it lapsed, or another process knows
