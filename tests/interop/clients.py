"""Stock clients of the `pressure` protocol, made ready for Python 3 and today's redis-py; their logic stays theirs.

* `pressure-0.5`: the release, as its authors published it.
* `pressure-newest`: the release with the two differences that the newest source has: a get gives `not_full` back only
  when the line is below its bound, and the peeks take the producer's role. Our own words, not its text.
* `pressure-source`: the newest source itself, if HEADWAY_PRESSURE_SOURCE names its file.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeAlias

import pytest
from redis.backoff import NoBackoff
from redis.retry import Retry

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
SOURCE_VARIABLE = "HEADWAY_PRESSURE_SOURCE"
_INSTALL_S = 110

# A module that has no types: its queue class, and instances of it.
QueueClass: TypeAlias = Any
Queue: TypeAlias = Any


class NotInstallable(Exception):
    """The stock client is neither installed nor could it be."""


def names() -> list[str]:
    """The clients to test with."""
    source = ["pressure-source"] if os.environ.get(SOURCE_VARIABLE) else []
    return ["pressure-0.5", "pressure-newest", *source]


def skip_or_fail(reason: str) -> NoReturn:
    """Skips on a laptop, fails where everything must be there."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def load(name: str, config: pytest.Config) -> QueueClass:
    """The queue class of a client."""
    if name == "pressure-source":
        return _for_python_3(_module_of(Path(os.environ[SOURCE_VARIABLE])), is_newest=True)
    stock = _for_python_3(_installed(config), is_newest=False)
    return stock if name == "pressure-0.5" else _as_newest(stock)


def _installed(config: pytest.Config) -> ModuleType:
    cache: pytest.Cache | None = getattr(config, "cache", None)  # can be switched off
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # `is 0`
        try:
            return importlib.import_module("pressure")
        except ModuleNotFoundError:
            if cache is None:
                raise NotInstallable("pressure is not installed and there is no cache folder to put it into") from None
        folder = Path(cache.mkdir("pressure"))
        _install_into(folder)
        sys.path.append(str(folder))
        try:
            return importlib.import_module("pressure")
        finally:
            sys.path.remove(str(folder))


def _install_into(folder: Path) -> None:
    """Once for all test processes; setuptools too if the environment has none."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / "pressure").is_dir():
            return
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pip += ["--target", str(folder)]
        steps = [[*pip, "--no-build-isolation", "--no-deps", "-r", str(REQUIREMENTS)]]
        if importlib.util.find_spec("setuptools") is None:
            steps.insert(0, [*pip, "setuptools"])
        for step in steps:
            try:
                subprocess.run(
                    step,
                    check=True,
                    capture_output=True,
                    text=True,
                    timeout=_INSTALL_S,
                    env=os.environ | {"PYTHONPATH": str(folder), "PYTHONWARNINGS": "ignore"},
                )
            except subprocess.CalledProcessError as error:
                raise NotInstallable(f"pip could not install pressure: {error.stderr[-500:]}") from error
            except subprocess.TimeoutExpired as error:
                raise NotInstallable(f"pip could not install pressure within {_INSTALL_S} s") from error


def _module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("pressure_source", path)
    if spec is None or spec.loader is None:
        raise NotInstallable(f"{SOURCE_VARIABLE} names no Python file: {path}")
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        spec.loader.exec_module(module)
    return module


def _for_python_3(module: ModuleType, *, is_newest: bool) -> QueueClass:
    """The client's class with key names as bytes (a blocking pop's reply is compared with them), and `__next__`."""

    class Shimmed(module.PressureQueue):  # type: ignore[misc, name-defined]
        behaves_as_newest = is_newest
        QueueAlreadyExistsError = module.QueueAlreadyExistsError
        QueueDoesNotExistError = module.QueueDoesNotExistError
        QueueClosedError = module.QueueClosedError
        QueueFullError = module.QueueFullError
        QueueInUseError = module.QueueInUseError
        OperationUnblocked = module.OperationUnblocked

        def __init__(self, name: str, prefix: str, uid: str, **address: object) -> None:
            super().__init__(
                name,
                prefix=prefix,
                protocol=2,
                socket_timeout=None,
                retry=Retry(NoBackoff(), 0),
                client_name=uid,
                **address,
            )
            self.keys: dict[str, bytes] = {short: key.encode() for short, key in vars(self)["keys"].items()}
            self.client_uid = uid

        __next__ = module.PressureQueue.next

    return Shimmed


class _BelowTheBound:
    """The connection as a get of the newest source uses it: no token for room while there is none."""

    def __init__(self, queue: Queue, connection: Any) -> None:
        self._queue = queue
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def _is_withheld(self, key: bytes) -> bool:
        queue = self._queue
        return (
            key == queue.keys["not_full"]
            and queue.bound is not None
            and self._connection.llen(queue.keys["queue"]) >= queue.bound
        )

    def lpush(self, key: bytes, *values: object) -> Any:
        return None if self._is_withheld(key) else self._connection.lpush(key, *values)

    def ltrim(self, key: bytes, start: int, end: int) -> Any:
        return None if self._is_withheld(key) else self._connection.ltrim(key, start, end)


def _as_newest(stock: QueueClass) -> QueueClass:
    class Newest(stock):  # type: ignore[misc]
        behaves_as_newest = True
        _db: Any
        keys: dict[str, bytes]

        @contextmanager
        def _minding_the_bound(self) -> Iterator[None]:
            connection = self._db
            self._db = _BelowTheBound(self, connection)
            try:
                yield
            finally:
                self._db = connection

        @contextmanager
        def _as_producer(self) -> Iterator[None]:
            keys = self.keys
            self.keys = keys | {"consumer": keys["producer"], "consumer_free": keys["producer_free"]}
            try:
                yield
            except self.QueueInUseError as error:
                error.role = "producer"
                raise
            finally:
                self.keys = keys

        def get(self, *args: Any, **kwargs: Any) -> Any:
            with self._minding_the_bound():
                return super().get(*args, **kwargs)

        def get_nowait(self) -> Any:
            with self._minding_the_bound():
                return super().get_nowait()

        def peek_reverse(self, *args: Any, **kwargs: Any) -> Any:
            with self._as_producer():
                return super().peek_reverse(*args, **kwargs)

        def peek_reverse_nowait(self) -> Any:
            with self._as_producer():
                return super().peek_reverse_nowait()

    return Newest
