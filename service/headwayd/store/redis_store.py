"""The store on Redis or Valkey, put together."""

from __future__ import annotations

from headwayd.store.dead_steps import DeadSteps
from headwayd.store.message_steps import MessageSteps
from headwayd.store.queue_steps import QueueSteps
from headwayd.store.stand_steps import StandSteps
from headwayd.store.watch_steps import WatchSteps


class RedisStore(QueueSteps, MessageSteps, DeadSteps, StandSteps, WatchSteps):
    """Fulfils `engine.ports.Store`."""
