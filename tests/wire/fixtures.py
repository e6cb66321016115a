"""Fixtures for tests that speak to a live service: one queue with short words, and its keys.

The conftest files of `wire` and `interop` import them.
"""

from __future__ import annotations

import pytest
import redis

from headway.v1 import admin_service_pb2_grpc, queue_service_pb2_grpc
from wire.calls import Keys, Line


@pytest.fixture
def line(
    stub: queue_service_pb2_grpc.QueueServiceAsyncStub,
    admin: admin_service_pb2_grpc.AdminServiceAsyncStub,
    queue_name: str,
) -> Line:
    """A queue of this test's own on the shared service; it is not made yet."""
    return Line(stub, queue_name, admin)


@pytest.fixture
def keys(redis_client: redis.Redis, prefix: str, queue_name: str) -> Keys:
    """The keys of that queue in the store."""
    return Keys(redis_client, prefix, queue_name)
