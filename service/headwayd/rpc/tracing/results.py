"""What became of a call, in the words that the tracer is told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from headway.v1 import message_pb2
from headwayd.domain.errors import HeadwayError, Reason
from headwayd.domain.model import Settled, Settlement
from headwayd.domain.tracing import CANCELLED
from headwayd.rpc.tracing.port import PutSpan


def reason_of(error: BaseException) -> str:
    """Why a call failed, in one word: its text may hold what its caller wrote."""
    if isinstance(error, HeadwayError):
        return error.reason.name
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return CANCELLED
    return Reason.INTERNAL.name


def end_put(span: PutSpan, results: Sequence[message_pb2.PutResult]) -> None:
    """Ends the span of a batch that was answered."""
    span.done(
        [(result.id, result.position) for result in results],
        deduplicated=sum(result.deduplicated for result in results),
        refused=sum(result.HasField("error") for result in results),
    )


def settlements(results: Iterable[message_pb2.SettleResult]) -> list[Settlement]:
    """How leases were settled; those of messages that were only named are left out."""
    return [
        Settlement(
            lease=result.lease,
            settled=Settled(result.settled),
            attempts=result.attempts,
            available_at_ms=result.available_at.ToMilliseconds() if result.HasField("available_at") else None,
        )
        for result in results
        if result.lease
    ]
