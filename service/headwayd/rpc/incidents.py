"""How a call ends that failed, and what is told of an item that did: its error, or an incident if it met a defect."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, NoReturn

import grpc.aio
import structlog
from grpc.aio import ServicerContext

from headwayd.domain.errors import HeadwayError, InternalError, Reason, forget_way
from headwayd.rpc.status import abort

log: Any = structlog.get_logger(__name__)


async def fail(context: ServicerContext[Any, Any], error: Exception, method: str) -> NoReturn:
    """Ends the call. Never returns."""
    told = as_told(error, method)
    forget_way(error)
    try:
        await abort(context, told)
    except grpc.aio.InternalError as lost:  # the caller has gone, or does not read what was written before
        raise asyncio.CancelledError from lost


def as_told(error: Exception, method: str) -> HeadwayError:
    """What a caller is told of it."""
    if isinstance(error, HeadwayError) and error.reason is not Reason.INTERNAL:
        return error
    return incident(error, method)


def incident(error: BaseException, method: str) -> InternalError:
    """Logs a defect under a random name, and tells the caller only that name. One that befell many items is logged
    once."""
    known = error.metadata if isinstance(error, HeadwayError) else {}
    if "incident" not in known:
        known["incident"] = secrets.token_hex(8)
        log.error("incident", incident=known["incident"], method=method, exc_info=error)
    name = known["incident"]
    return InternalError(f"a defect of the service; its log tells more of {name}", metadata={"incident": name})
