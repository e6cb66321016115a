"""Sets up the log: lines for people or JSON, on stderr, from structlog and from libraries alike.

Never a payload: bytes are replaced by their length, whoever logs them, and traces come without the values of local
variables, among which payloads and passwords are.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog
from structlog.typing import Processor

from headwayd.domain import namespaces


def set_up(*, log_format: str, level: str) -> None:
    """From now on everything is logged in `log_format` ("console" or "json"), from `level` on. May be called again."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _without_bytes,
        _with_namespaces,
    ]
    last: list[Processor]
    if log_format == "json":
        without_locals = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        last = [structlog.processors.ExceptionRenderer(without_locals), structlog.processors.JSONRenderer(default=str)]
    else:
        last = [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), pad_event_to=0, exception_formatter=structlog.dev.plain_traceback
            )
        ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.add_logger_name,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    logging.captureWarnings(capture=True)
    # What they say below that level is about their own loops, or whole URLs and heads of answers, which hold secrets.
    for chatty in ("asyncio", "grpc._cython.cygrpc", "httpx", "httpcore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def flush() -> None:
    """Everything logged so far is written."""
    for handler in logging.getLogger().handlers:
        handler.flush()


def _with_namespaces(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Names of queues as people read them, wherever they stand."""
    for key, value in event.items():
        if isinstance(value, str) and namespaces.SEPARATOR in value:
            event[key] = namespaces.shown(value)
    return event


def _without_bytes(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if isinstance(value, bytes | bytearray | memoryview):
            event[key] = f"<{len(value)} bytes>"
    return event
