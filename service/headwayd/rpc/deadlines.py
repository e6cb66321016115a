"""How much of an RPC's deadline store calls and waiting may use, so that the answer still arrives."""

from __future__ import annotations

from typing import Any

from grpc.aio import ServicerContext

_STORE_BUDGET_S = 2.0  # every call answers within this when the store is down
_ANSWER_MARGIN_S = 0.05  # for the way back
_SMALLEST_BUDGET_S = 0.02  # a call whose time is nearly over still gets one honest try

# gRPC sends a timeout in three digits and rounds it up: an hour may arrive as 3,610 s.
_ROUNDED_UP = 1.01

_WAIT_MARGIN_SHARE = 0.1
_SMALLEST_WAIT_MARGIN_S = 0.1
_LARGEST_WAIT_MARGIN_S = _STORE_BUDGET_S  # more cannot be needed after a wait


def store_budget_s(context: ServicerContext[Any, Any]) -> float:
    """The seconds that the store calls of this RPC may take in all."""
    remaining = _remaining_s(context)
    if remaining is None:
        return _STORE_BUDGET_S
    return max(min(remaining - _ANSWER_MARGIN_S, _STORE_BUDGET_S), _SMALLEST_BUDGET_S)


def wait_within_deadline_ms(wait_ms: int, context: ServicerContext[Any, Any]) -> int:
    """`wait_ms`, cut so that an answer after the whole wait still arrives before the RPC's deadline."""
    remaining = _remaining_s(context)
    if remaining is None:
        return wait_ms
    margin = min(max(remaining * _WAIT_MARGIN_SHARE, _SMALLEST_WAIT_MARGIN_S), _LARGEST_WAIT_MARGIN_S)
    return max(min(wait_ms, int((remaining - margin) * 1_000)), 0)


def _remaining_s(context: ServicerContext[Any, Any]) -> float | None:
    """None if the caller set no deadline, which the type stubs do not know."""
    remaining: float | None = context.time_remaining()
    return None if remaining is None else remaining / _ROUNDED_UP
