"""How a call ends that failed: with the status of its error, or with that of an incident if it met a defect."""

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
    told = incident(error, method) if not isinstance(error, HeadwayError) or error.reason is Reason.INTERNAL else error
    forget_way(error)
    try:
        await abort(context, told)
    except grpc.aio.InternalError as lost:  # the caller has gone, or does not read what was written before
        raise asyncio.CancelledError from lost


def incident(error: BaseException, method: str) -> InternalError:
    """Logs a defect under a random name, and tells the caller only that name."""
    name = secrets.token_hex(8)
    log.error("incident", incident=name, method=method, exc_info=error)
    return InternalError(f"a defect of the service; its log tells more of {name}", metadata={"incident": name})
