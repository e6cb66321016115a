"""The store on Redis or Valkey, put together."""

from __future__ import annotations

from headwayd.store.message_steps import MessageSteps
from headwayd.store.queue_steps import QueueSteps


class RedisStore(QueueSteps, MessageSteps):
    """Fulfils `engine.ports.Store`."""
