"""The settings that bound what one call, batch or message may be."""

from __future__ import annotations

from pydantic_settings import BaseSettings

from headwayd.config.fields import KIB, MIB, Span, ms, setting
from headwayd.domain.footprint import Capacity
from headwayd.domain.limits import MAX_DELAY_MS, MAX_LEASE_MS, MAX_WAIT_MS, MIN_LEASE_MS, Limits

_DEFAULTS = Limits()


class LimitSettings(BaseSettings):
    """A part of `Settings`."""

    max_message_bytes: int = setting(
        _DEFAULTS.max_message_bytes,
        "The most bytes of one message: payload, id and headers together. Queues are for work, not for files.",
        unit="bytes",
        ge=KIB,
        le=64 * MIB,
    )
    max_batch_messages: int = setting(
        _DEFAULTS.max_batch_messages,
        "The most items of one batch. One batch is one step of the store, which serves nobody else meanwhile.",
        unit="items",
        ge=1,
        le=5_000,
    )
    max_request_bytes: int = setting(
        _DEFAULTS.max_request_bytes, "The most bytes of one request.", unit="bytes", ge=64 * KIB, le=256 * MIB
    )
    max_response_bytes: int = setting(
        _DEFAULTS.max_response_bytes,
        "The most bytes of messages in one answer. Stock gRPC clients refuse answers above 4 MiB.",
        unit="bytes",
        ge=64 * KIB,
        le=256 * MIB,
    )
    max_wait: Span = setting(
        ms(MAX_WAIT_MS),
        "The longest wait of one call. Where it is below 30s, workers of the client libraries end with an error if they"
        " work by calls (Python's only if told to, and `headway work`): they wait that long at a time.",
        unit="span",
        ge=ms(0),
        le=ms(MAX_WAIT_MS),
    )
    max_lease: Span = setting(
        ms(MAX_LEASE_MS),
        "The longest lease, also where a queue's policy says a longer one.",
        unit="span",
        ge=ms(MIN_LEASE_MS),
        le=ms(MAX_LEASE_MS),
    )
    max_delay: Span = setting(
        ms(MAX_DELAY_MS),
        "The longest delay that a call may give a message. The backoff of a queue's policy is not bounded by it.",
        unit="span",
        ge=ms(0),
        le=ms(MAX_DELAY_MS),
    )

    def limits_with(self, capacity: Capacity, **others: int) -> Limits:
        """As the rest of the service knows them, with what belongs to other parts."""
        return Limits(
            max_message_bytes=self.max_message_bytes,
            max_batch_messages=self.max_batch_messages,
            max_request_bytes=self.max_request_bytes,
            max_response_bytes=self.max_response_bytes,
            max_wait_ms=self.max_wait // ms(1),
            max_lease_ms=self.max_lease // ms(1),
            max_delay_ms=self.max_delay // ms(1),
            max_running_calls=capacity.max_running_calls,
            max_pending_calls=capacity.max_pending_calls,
            max_connections=capacity.max_connections,
            max_running_bytes=capacity.max_running_bytes,
            **others,
        )
