"""The settings of how much one process takes at a time: calls, streams, connections, and the memory for all of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from pydantic_settings import BaseSettings

from headwayd.config.fields import KIB, MIB, Span, setting
from headwayd.config.memory import granted_bytes
from headwayd.domain.footprint import LEAST_WINDOW_BYTES, Capacity, capacity_within, window_within
from headwayd.domain.limits import Limits

_DEFAULTS, _FULL = Limits(), Capacity()
_OR_FEWER = ", or fewer where memory is less"


class CapacitySettings(BaseSettings):
    """A part of `Settings`."""

    memory_limit: int | None = setting(
        None,
        "The memory that the service may use, all its workers together. The next five follow from it where they are "
        "not given; where they are and need more than this, the service does not start.",
        unit="bytes",
        shown="what the control group grants, else the machine's",
        ge=192 * MIB,
        le=1024 * 1024 * MIB,
    )
    max_running_calls: int | None = setting(
        None,
        "The most calls and streams at a time in one process; streams leave a tenth to calls. One that watches takes "
        "about 31 KB: more need more memory, or more processes. One that watches many messages counts once more for "
        "each 16 of them, here and among the streams of its connection.",
        unit="calls",
        shown=f"{_FULL.max_running_calls}{_OR_FEWER}",
        ge=10,
        le=1_000_000,
    )
    max_pending_calls: int | None = setting(
        None,
        "The most calls that wait to be begun in one process, of which each of its acceptors has a share; gRPC ends "
        "more with CANCELLED. Each takes about 20 KB. "
        "Fewer: under overload calls are younger when they are served, and more of them are in time. More: more "
        "clients may come at the same moment.",
        unit="calls",
        shown=f"{_FULL.max_pending_calls}{_OR_FEWER}",
        ge=100,
        le=100_000,
    )
    max_connections: int | None = setting(
        None,
        "The most connections at a time on one address of one process, of which each of its acceptors has a share; "
        "more are closed as they come. Each needs a file descriptor and some memory, also while it is idle.",
        unit="connections",
        shown=f"{_FULL.max_connections}{_OR_FEWER}",
        ge=10,
        le=1_000_000,
    )
    max_http_connections: int | None = setting(
        None,
        "The most connections at a time to http_listen of one process; more are answered 503 and closed, unless "
        "they ask for /healthz or /readyz. A page that follows something holds one.",
        unit="connections",
        shown=f"{_FULL.max_http_connections}{_OR_FEWER}",
        ge=10,
        le=1_000_000,
    )
    max_running_bytes: int | None = setting(
        None,
        "The most bytes of large requests (16 KiB and more, with 170 for each message in them) that one process holds "
        "at a time: of Puts until they end, those that wait for room among them, of streams that watch as long as they "
        "last, but for the ids for which one counts as several, and of batches of Produce, whatever their size, until "
        "their reply is taken. Calls beyond it are refused with OVERLOADED, Produce streams are held back.",
        unit="bytes",
        shown=f"{_FULL.max_running_bytes}{_OR_FEWER}",
        ge=64 * KIB,
        le=64 * 1024 * MIB,
    )
    receive_window: int | None = setting(
        None,
        "What a call or stream may send before it is read (HTTP/2's flow control); a message that is larger comes all "
        "the same. More: batches follow each other without waiting until the client knows that there is room. Each "
        "that sends more than is read, as a Produce stream that is held back, may take so much memory.",
        unit="bytes",
        shown="a quarter of the memory that the limits leave, over all calls that may run or wait; 65535 to 1048576",
        ge=LEAST_WINDOW_BYTES,
        le=64 * MIB,
    )
    max_streams_per_connection: int = setting(
        _DEFAULTS.max_streams_per_connection,
        "The most streams of one connection, so that one client does not take all there are. Streams and calls "
        "together may be twice as many, and 100 more: HTTP/2 turns away what is beyond that, and clients' libraries "
        "hold it back. Fewer: a flood over few connections costs less.",
        unit="streams",
        ge=1,
        le=1_000_000,
    )
    flood_calls: int = setting(
        1_200,
        "When more calls come than gRPC can even turn away, clients are told to connect anew, and the connections that "
        "flood may then have so many streams and calls together, each its share, but 16 at least; when it has been "
        "over for a while, again. Clients' libraries hold back what is beyond that. Not where one of the addresses is "
        "a socket of this machine, nor on systems other than Linux, nor where a connection might be held back that "
        "takes no part in the flood. 0: never.",
        unit="calls",
        ge=0,
        le=100_000,
    )
    max_metadata_bytes: int = setting(
        _DEFAULTS.max_metadata_bytes,
        "The most bytes of one call's metadata: names, values, and 32 for each pair, as HTTP/2 counts.",
        unit="bytes",
        ge=4 * KIB,
        le=MIB,
    )
    max_connection_idle: Span = setting(
        timedelta(minutes=30),
        "A connection without calls for so long is closed, in good order: clients open another when they need one.",
        unit="span",
        ge=timedelta(seconds=1),
        le=timedelta(days=7),
    )
    handshake_timeout: Span = setting(
        timedelta(seconds=10),
        "How long a new connection may take until it speaks HTTP/2, its TLS included, and at http_listen for its TLS. "
        "Then it is closed.",
        unit="span",
        ge=timedelta(seconds=1),
        le=timedelta(minutes=2),
    )
    write_timeout: Span = setting(
        timedelta(minutes=1),
        "How long a stream's reader may leave a reply untaken. Then the stream is ended, and gives back what it has "
        "leased: who does not read holds memory and leases for nothing. And how long the one request of a call may "
        "take to come; then the call ends with OVERLOADED.",
        unit="span",
        ge=timedelta(seconds=1),
        le=timedelta(hours=1),
    )

    def memory_bytes(self, processes: int) -> int:
        """What each of so many processes may use."""
        return (self.memory_limit or granted_bytes()) // processes

    def capacity(self, processes: int) -> Capacity:
        """What is in force for each of so many processes: as it was given, else as the memory allows."""
        memory = self.memory_bytes(processes)
        allowed = capacity_within(memory)
        capacity = Capacity(
            max_running_calls=self.max_running_calls or allowed.max_running_calls,
            max_pending_calls=self.max_pending_calls or allowed.max_pending_calls,
            max_connections=self.max_connections or allowed.max_connections,
            max_http_connections=self.max_http_connections or allowed.max_http_connections,
            max_running_bytes=self.max_running_bytes or allowed.max_running_bytes,
        )
        return replace(capacity, receive_window=self.receive_window or window_within(memory, capacity))
