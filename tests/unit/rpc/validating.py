"""How the tests of ranges ask: with small limits, and for what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from headway.v1.message_pb2 import Message
from headway.v1.queue_service_pb2 import PutRequest
from headwayd.domain.errors import FieldInvalid, InvalidInput
from headwayd.domain.limits import Limits
from headwayd.rpc import requests

LIMITS = Limits(max_message_bytes=1_000, max_batch_messages=10)
NEGATIVE = Duration(nanos=-1)


def refused(
    call: Callable[..., object], *asked: Any, error_class: type[InvalidInput] = FieldInvalid, **fields: Any
) -> dict[str, str]:
    """The violations of a refused request, by field."""
    with pytest.raises(InvalidInput) as caught:
        call(*asked, **fields)
    assert type(caught.value) is error_class
    assert caught.value.metadata["field"] == caught.value.violations[0].field
    return {violation.field: violation.description for violation in caught.value.violations}


def put(*messages: Message, **fields: Any) -> Any:
    return requests.put_order(PutRequest(queue="q", messages=messages, **fields), LIMITS)
