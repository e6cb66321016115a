"""One of several processes that serve on the same addresses: `python -P -m headwayd.worker`, started by the supervisor.

Its orders come on standard input, which then stays open: its end is the supervisor's death, and the worker's. What it
announces goes to standard output, one line, when it serves.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
from dataclasses import dataclass

import structlog

from headwayd.config.settings import Settings

# An orphan gives back what it holds, in a hurry. One that cannot even do that in this time is ended.
_ORPHAN_S = 20.0


@dataclass(frozen=True, slots=True)
class Orders:
    """What a worker is to do. `listen` of the settings has real ports; `store_url` is the supervisor's embedded store,
    None if the settings name another; `places` is the memory that all workers share for their numbers, a place each."""

    number: int
    settings: Settings
    store_url: str | None
    places: tuple[int, ...] = ()

    def pack(self) -> bytes:
        """As it goes to the worker."""
        packed = pickle.dumps(self)
        return len(packed).to_bytes(4) + packed


def _read_exactly(count: int) -> bytes:
    """From standard input. An end before that is the supervisor's, and this process's."""
    read = b""
    while len(read) < count:
        chunk = os.read(0, count - len(read))
        if not chunk:
            sys.exit(1)
        read += chunk
    return read


def _end_with_the_supervisor() -> None:
    while os.read(0, 4096):
        pass
    # Two different signals, because two of the same may be taken for one: told to stop, and to hurry.
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(_ORPHAN_S)
    os._exit(1)


def _tell_supervisor(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def main() -> None:
    """Reads the orders and serves until told to stop or alone. Exit code 1 with a line on stderr if it cannot."""
    packed = _read_exactly(int.from_bytes(_read_exactly(4)))
    threading.Thread(target=_end_with_the_supervisor, name="tether", daemon=True).start()
    orders: Orders = pickle.loads(packed)  # noqa: S301 - from the supervisor, over a pipe of its own
    structlog.contextvars.bind_contextvars(worker=orders.number)
    # Late: an orphan need not load gRPC first.
    from headwayd.app import START_ERRORS, run  # noqa: PLC0415
    from headwayd.oversight import SharedPlaces  # noqa: PLC0415

    shared = SharedPlaces(orders.places, own=orders.number - 1) if orders.places else None
    try:
        run(orders.settings, announce=_tell_supervisor, is_worker=True, store_url=orders.store_url, shared=shared)
    except START_ERRORS as error:
        sys.exit(f"headwayd: worker {orders.number}: {error}")


if __name__ == "__main__":
    main()
