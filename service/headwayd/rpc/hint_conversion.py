"""Poll hints and estimates, as every message that tells a place has them."""

from __future__ import annotations

from headway.v1 import message_pb2, queue_service_pb2
from headwayd.domain.hints import PollHints
from headwayd.domain.watching import Eta
from headwayd.rpc.spans import set_duration


def set_hints(target: queue_service_pb2.Position | message_pb2.Standing, hints: PollHints) -> None:
    """How often it is worth asking."""
    set_duration(target.poll_min, hints.poll_min_ms)
    set_duration(target.poll_max, hints.poll_max_ms)


def set_eta(target: message_pb2.Eta, eta: Eta | None) -> None:
    """Set in any case: that nothing is known is said."""
    target.known = eta is not None
    if eta is not None:
        set_duration(target.p50, eta.p50_ms)
        set_duration(target.p90, eta.p90_ms)
