"""Model and scripts, driven together: whatever Hypothesis thinks of, both must say the same.

The scripts run with one include replaced: the clock, which reads a key that the machine moves.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, ClassVar, TypeVar

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from harness import StoreServer
from headwayd.domain.errors import HeadwayError
from headwayd.domain.model import (
    DeadMessage,
    DelayOrder,
    Delivery,
    GetOrder,
    NewMessage,
    OnDuplicate,
    Policy,
    Purged,
    PutCode,
    PutOutcome,
    WithdrawOutcome,
)
from headwayd.domain.places import Feed, Happening, LineNumbers, Shape, Whereabouts
from headwayd.store import keys, scripts
from headwayd.store.redis_store import RedisStore
from stateful.model import Model

T = TypeVar("T")
CLOCK_KEY = "stateful:now"
CLOCK = {"time": f"local NOW = tonumber(redis.call('GET', '{CLOCK_KEY}'))\n"}
# Shrinking takes minutes and is worth it only to whoever looks at a failure: HEADWAY_STATEFUL_SHRINK=1.
PHASES = [Phase.explicit, Phase.reuse, Phase.generate] + [Phase.shrink] * (
    os.environ.get("HEADWAY_STATEFUL_SHRINK") == "1"
)
BUDGET: dict[str, Any] = {"budget_s": 5.0}
FOREVER_MS = 7 * 24 * 3_600_000
PAYLOADS = st.sampled_from([b"", b"a", b"bb", b"\x00\xff", b"\xf5HW\x01", b"\xf5HW\x01" + b"\x00" * 30, b"x" * 300])
IDS = st.sampled_from(["", "", "", "one", "two", "three", "ünï"])
DELAYS = st.sampled_from([0, 0, 0, 1, 500, 3_000])
LIVES = st.sampled_from([0, 0, 0, 0, 1, 700, 4_000])
MESSAGES = st.lists(st.tuples(PAYLOADS, IDS, DELAYS, LIVES), min_size=1, max_size=5)
SHORT_WINDOW_MS = 1_500
# How near to an end of the list an element is taken out at once. In use it is more than any list here is long; so that
# what happens in long ones is seen, too, the machine also runs with next to nothing.
NEAR_NOTHING = {"reach": "local NEAR = 2\n"}


FINISHED = {"dead": "finished"}


class Watched:
    """A line as those who watch know it: what stood there once, and what they were told since."""

    def __init__(self, numbers: LineNumbers, shape: Shape) -> None:
        self.numbers = numbers
        self._returned = set(shape.returned)
        self._gaps = set(shape.gaps)

    def apply(self, feed: Feed) -> None:
        assert feed.events is not None
        for event in feed.events:
            if event.what is Happening.BACK:
                self._returned.add(int(event.ref))
            elif event.what not in (Happening.PROGRESS, Happening.REPLACED) and event.ref.isdigit():
                self._returned.discard(int(event.ref))
                self._gaps.add(int(event.ref))
        self.numbers = feed.numbers
        self._gaps = {ticket for ticket in self._gaps if ticket > self.numbers.head}

    def line(self) -> list[int]:
        fresh = range(self.numbers.head + 1, self.numbers.tail + 1)
        return sorted(self._returned) + [ticket for ticket in fresh if ticket not in self._gaps]


class QueueMachine(RuleBasedStateMachine):
    """One queue, several clients who remember every lease they ever had, a foreign client, and a clock."""

    server: ClassVar[StoreServer]
    replaced: ClassVar[dict[str, str]] = CLOCK
    steps: ClassVar[int] = 0  # done by all machines of this class

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.name = f"m{uuid.uuid4().hex[:12]}"
        self.raw = self.server.client()
        built = {name: scripts.build(name, self.replaced) for name in scripts.NAMES}
        self.store = RedisStore(
            self.server.url,
            prefix="stateful",
            process="headway/stateful/1/0",
            embedded=False,
            call_timeout=timedelta(seconds=5),
            scripts=built,
        )
        self.now = 1_700_000_000_000
        self.raw.set(CLOCK_KEY, self.now)
        self.leases: list[tuple[int, int, str]] = []  # in which life, ticket, token
        self.life = 0
        self.model: Model
        self.bases = keys.base_key("stateful", self.name)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        async def end() -> None:
            with contextlib.suppress(HeadwayError):
                await self.store.delete(self.name, **BUDGET)
            await self.store.close()

        self.run(end())
        left = list(self.raw.scan_iter(f"{self.bases}*"))
        self.raw.close()
        self.loop.close()
        assert left == []

    @initialize(
        bound=st.sampled_from([0, 0, 1, 3, 5]),
        limit=st.sampled_from([0, 0, 1, 3]),
        max_attempts=st.sampled_from([0, 1, 2, 3]),
        min_backoff_ms=st.sampled_from([0, 100, 1_000]),
        time_to_live_ms=st.sampled_from([0, 0, 0, 2_500]),
        dead_letter_expired=st.booleans(),
        window_ms=st.sampled_from([FOREVER_MS, FOREVER_MS, SHORT_WINDOW_MS]),
    )
    def create(self, window_ms: int, **shape: Any) -> None:
        self.shape: dict[str, Any] = shape | {"lease_ms": 1_000, "max_backoff_ms": 2_500}
        self.window_ms = window_ms
        self._make()

    def _make(self) -> None:
        policy = Policy(**self.shape, remember_ms=FOREVER_MS, dedupe_window_ms=self.window_ms)
        queue, is_made = self.run(self.store.create(self.name, policy, **BUDGET))
        assert is_made
        self._begin_life(queue.generation)

    def _begin_life(self, generation: str) -> None:
        self.life += 1
        self.generation = generation
        self.watched: Watched | None = None
        self.told: list[str] = []  # the made ids that clients heard of, as the model has them
        self.model = Model(**self.shape, window_ms=self.window_ms, now=self.now)

    # -- what clients do ----------------------------------------------------------------------------------------------

    @rule(batch=MESSAGES, mode=st.sampled_from(OnDuplicate), whole=st.booleans())
    def put(self, batch: list[tuple[bytes, str, int, int]], mode: OnDuplicate, whole: bool) -> None:
        expected = self.model.put(batch, mode=mode.value, whole=whole)
        messages = [NewMessage(payload=p, id=i, delay_ms=d, time_to_live_ms=t) for p, i, d, t in batch]
        try:
            step = self.run(
                self.store.put(
                    self.name,
                    messages,
                    producer="p",
                    waiter="",
                    line_ticket=0,
                    on_duplicate=mode,
                    all_or_nothing=whole,
                    **BUDGET,
                )
            )
        except HeadwayError as error:
            assert type(error).__name__ == expected
            return
        assert [self._put_outcome(outcome) for outcome in step.outcomes] == expected
        for outcome, (_, given, _, _) in zip(step.outcomes, batch, strict=False):
            assert outcome.id == given if given else outcome.id.startswith(f"~{self.generation}-")
            self._hear(outcome.id)

    @staticmethod
    def _put_outcome(outcome: PutOutcome) -> tuple[str, int, int]:
        code = "differs" if outcome.body_differs else str(outcome.code)
        assert (outcome.error is None) == (outcome.code is not PutCode.REFUSED)
        return code, outcome.ticket, outcome.position

    def _lease(self, data: list[int]) -> list[tuple[int, str]]:
        """Leases that were ever given, some of them several times, and one that never was."""
        chosen = [self.leases[-1 - n % len(self.leases)] if self.leases and n < 40 else (0, -1, "A" * 48) for n in data]
        return [(ticket if life == self.life else -1, token) for life, ticket, token in chosen]

    @rule(
        most=st.integers(1, 6),
        lease_ms=st.sampled_from([0, 100, 5_000]),
        picks=st.lists(st.integers(0, 43), max_size=3),
        max_bytes=st.sampled_from([1, 10_000_000, 10_000_000, 10_000_000]),
        attempt=st.sampled_from(["", "", "a", "b"]),
    )
    def get(self, most: int, lease_ms: int, picks: list[int], max_bytes: int, attempt: str) -> None:
        if max_bytes == 1:
            attempt = ""
        ack = self._lease(picks)
        self._expire()
        order = GetOrder(
            queue=self.name,
            max_messages=most,
            lease_ms=lease_ms,
            ack=[token for _, token in ack],
            max_bytes=max_bytes,
            attempt_id=attempt,
        )
        if max_bytes == 1:  # the answer is cut, but never to nothing
            most = 1 if not self._next_is_empty_payload(ack) else most
        try:
            step = self.run(self.store.get(order, **BUDGET))
        except HeadwayError as error:
            self.model.get(most, lease_ms, ack, attempt)
            assert type(error).__name__ == "QueueDrained"
            assert self.model.is_drained()
            return
        if max_bytes == 1:
            most = min(order.max_messages, max(len(step.deliveries), 1))
        settled, taken, is_again = self.model.get(most, lease_ms, ack, attempt)
        assert [s.settled.name for s in step.settled] == settled
        assert [d.ticket for d in step.deliveries] == taken
        for delivery in step.deliveries:
            if is_again:
                assert delivery.lease == self.model.messages[delivery.ticket].token
                assert delivery.lease_expires_at_ms == self.model.leased[delivery.ticket]
                self._check_delivery(delivery)
            else:
                assert delivery.lease_expires_at_ms == self.now + (lease_ms or self.model.lease_ms)
                self._check_delivery(delivery)
                self.model.grant(delivery.ticket, delivery.lease, attempt)
                self.leases.append((self.life, delivery.ticket, delivery.lease))

    def _next_is_empty_payload(self, ack: list[tuple[int, str]]) -> bool:
        return bool(ack) or any(not self.model.messages[ticket].payload for ticket in self.model.line)

    def _expire(self) -> None:
        """Brings the model up to the time, as every script does first."""
        self.model.do_due()

    def _check_delivery(self, delivery: Delivery) -> None:
        message = self.model.messages[delivery.ticket]
        assert delivery.payload == message.payload
        assert delivery.attempt == message.failures + 1
        name = self.model.name_of(("ticket", delivery.ticket), message)
        assert delivery.id == (message.id or self._made(name))
        self._hear(delivery.id)

    def _hear(self, name: str) -> None:
        if name.startswith("~"):
            self.told.append(name.removeprefix(f"~{self.generation}-"))

    def _made(self, name: str) -> str:
        return f"~{self.generation}-{name}"

    def _names(self, picks: list[int]) -> tuple[list[str], list[str]]:
        """Names as the model and as the service has them: of messages, given ids, and some that never were."""
        model = self.model
        there = [model.name_of(("ticket", ticket), message) for ticket, message in model.messages.items()]
        there += [model.name_of(("delayed", seq), message) for seq, (_, message) in model.delayed.items()]
        there += [model.name_of(ref, message) for ref, message in model.dead]
        there += [*self.told[-12:], "one", "two", "three", "999", "d77", "never"]
        names = list(dict.fromkeys(there[n % len(there)] for n in picks))
        return names, [self._made(name) if name.lstrip("d").isdigit() else name for name in names]

    @rule(picks=st.lists(st.integers(0, 43), min_size=1, max_size=4), result=st.sampled_from([b"", b"", b"done so"]))
    def ack(self, picks: list[int], result: bytes) -> None:
        leases = self._lease(picks)
        results = self.run(self.store.ack(self.name, [token for _, token in leases], result=result, **BUDGET))
        assert [r.settled.name for r in results] == self.model.ack(leases, result)

    @rule(
        picks=st.lists(st.integers(0, 43), max_size=4, unique=True),
        named=st.lists(st.integers(0, 43), max_size=2),
        when=st.sampled_from([("delay", 0), ("delay", 1), ("delay", 2_000), ("backoff", 0)]),
        keeps=st.booleans(),
    )
    def delay(self, picks: list[int], named: list[int], when: tuple[str, int], keeps: bool) -> None:
        leases = list(dict.fromkeys(self._lease(picks)))
        self._expire()
        names, ids = self._names(named)
        mode, ms = when
        order = DelayOrder(
            queue=self.name,
            leases=[token for _, token in leases],
            message_ids=ids,
            delay_ms=ms if mode == "delay" else None,
            keep_attempt=keeps,
        )
        results = self.run(self.store.delay(order, **BUDGET))
        expected = self.model.delay(leases, names, mode=mode, ms=ms, keeps=keeps)
        assert [r.settled.name for r in results] == expected
        assert [r.id for r in results] == [""] * len(leases) + ids

    @rule(picks=st.lists(st.integers(0, 43), min_size=1, max_size=4))
    def withdraw(self, picks: list[int]) -> None:
        self._expire()
        names, ids = self._names(picks)
        outcomes = self.run(self.store.withdraw(self.name, ids, **BUDGET))
        assert [outcome.id for outcome in outcomes] == ids
        assert [self._withdrawn(outcome) for outcome in outcomes] == self.model.withdraw(names)

    @staticmethod
    def _withdrawn(outcome: WithdrawOutcome) -> str:
        error = outcome.error
        if error is None:
            return "withdrawn"
        return {"MESSAGE_LEASED": "leased", "MESSAGE_NOT_FOUND": ""}.get(
            error.reason.name, error.metadata.get("outcome", "?")
        )

    @rule(picks=st.lists(st.integers(0, 43), max_size=3), most=st.integers(1, 5))
    def redrive(self, picks: list[int], most: int) -> None:
        self._expire()
        names, ids = self._names(picks)
        expected = self.model.redrive(names, most)
        try:
            step = self.run(self.store.redrive(self.name, "", message_ids=ids, last=0, most=most, **BUDGET))
        except HeadwayError as error:
            assert type(error).__name__ == expected
            return
        given = dict(zip(ids, names, strict=True))
        assert (step.moved, [given[name] for name in step.not_found]) == expected
        assert step.remaining == (0 if names else len(self.model.dead))

    @rule(size=st.integers(1, 3))
    def list_the_dead(self, size: int) -> None:
        found: list[DeadMessage] = []
        token = ""
        while True:
            page = self.run(
                self.store.list_dead(self.name, page_size=size, page_token=token, max_bytes=10**7, **BUDGET)
            )
            assert len(page.messages) <= size
            found += page.messages
            token = page.next_page_token
            if not token:
                break
        dead = self.model.dead
        assert [(m.payload, m.failures, m.cause, m.replays) for m in found] == [
            (message.payload, message.failures, message.cause, message.replays) for _, message in dead
        ]
        names = [message.id or self._made(self.model.name_of(ref, message)) for ref, message in dead]
        assert [m.id for m in found] == names

    @rule(picks=st.lists(st.integers(0, 43), min_size=1, max_size=3), ms=st.sampled_from([100, 1_000, 9_000]))
    def extend(self, picks: list[int], ms: int) -> None:
        leases = self._lease(picks)
        results = self.run(self.store.extend(self.name, [token for _, token in leases], ms, **BUDGET))
        assert [r.settled.name for r in results] == self.model.extend(leases, ms)

    @rule(start=st.integers(1, 4), most=st.integers(1, 5))
    def peek(self, start: int, most: int) -> None:
        found = self.run(self.store.peek(self.name, from_position=start, max_messages=most, max_bytes=10**7, **BUDGET))
        expected = self.model.line[start - 1 : start - 1 + most]
        assert [p.ticket for p in found] == expected
        assert [p.position for p in found] == list(range(start, start + len(expected)))
        assert [p.payload for p in found] == [self.model.messages[ticket].payload for ticket in expected]
        assert [p.failures for p in found] == [self.model.messages[ticket].failures for ticket in expected]

    # -- what operators and time do -----------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([1, 99, 100, 500, 999, 1_000, 1_001, 5_000]))
    def let_time_pass(self, ms: int) -> None:
        self.now += ms
        self.model.now = self.now
        self.raw.set(CLOCK_KEY, self.now)

    @rule()
    def sweep(self) -> None:
        assert self.run(self.store.sweep(self.name, **BUDGET)) is False
        self.model.do_due()

    @rule(bound=st.sampled_from([0, 1, 4]))
    def update(self, bound: int) -> None:
        self.run(self.store.update(self.name, Policy(bound=bound), ["bound"], **BUDGET))
        self.model.bound = self.shape["bound"] = bound

    @rule(dead=st.booleans())
    def purge(self, dead: bool) -> None:
        self._sweep_both()
        purged = self.run(self.store.purge(self.name, with_dead=dead, **BUDGET))
        assert purged == Purged(*self.model.purge(dead=dead))

    def _sweep_both(self) -> None:
        self.run(self.store.sweep(self.name, **BUDGET))
        self.model.do_due()

    @precondition(lambda self: not self.model.is_closed)
    @rule()
    def close(self) -> None:
        self.run(self.store.close_queue(self.name, **BUDGET))
        self.model.is_closed = True

    @precondition(lambda self: self.model.accepted > 3)
    @rule(how=st.sampled_from(["ours", "foreign delete", "foreign delete and create"]))
    def begin_a_new_life(self, how: str) -> None:
        base = self.bases
        if how == "ours":
            assert self.run(self.store.delete(self.name, **BUDGET)).is_done
            assert list(self.raw.scan_iter(f"{base}*")) == []
            self._make()
            return
        self.raw.delete(*(base + suffix for suffix in keys.PRESSURE.values()))
        if how == "foreign delete":
            gone = self.run(self.store.ack(self.name, [token for _, _, token in self.leases[-2:]], **BUDGET))
            assert all(result.settled.name == "GONE" for result in gone)
            self._make()
            return
        self.raw.set(f"{base}:bound", self.shape["bound"])
        for key in ("producer_free", "consumer_free", "not_full"):
            self.raw.lpush(f"{base}:{key}", 0)
        default = Policy()
        self.shape |= {name: getattr(default, name) for name in self.shape if name != "bound"}
        self.window_ms = default.dedupe_window_ms
        self._begin_life("")
        self.numbers_agree()  # seen, but not booked yet
        self.run(self.store.sweep(self.name, **BUDGET))
        self.generation = self.run(self.store.describe(self.name, **BUDGET)).generation

    # -- what foreign clients do: pressure's steps, each one command ---------------------------------------------------

    @precondition(lambda self: not self.model.is_closed)
    @rule(payload=st.sampled_from([b"f", b"foreign", b"\xf5HW\x01zzz"]))
    def foreign_put(self, payload: bytes) -> None:
        base = self.bases
        assert self.raw.rpop(f"{base}:producer_free") is not None
        self.raw.set(f"{base}:producer", "foreign")
        if self.model.bound and self.raw.rpop(f"{base}:not_full") is None:
            self.raw.lpush(f"{base}:producer_free", 0)
            assert len(self.model.line) >= self.model.bound
            return
        length = self.raw.lpush(base, payload)
        if self.model.bound and length < self.model.bound:
            self.raw.lpush(f"{base}:not_full", 0)
            self.raw.ltrim(f"{base}:not_full", 0, 0)
        self.raw.incr(f"{base}:stats:produced_messages")
        self.raw.incr(f"{base}:stats:produced_bytes", len(payload))
        self.raw.lpush(f"{base}:producer_free", 0)
        message = self.model.foreign_put(payload)
        if self.model.time_to_live_ms:  # it counts from when the message is noticed
            self._sweep_both()
            message.expires_at = self.now + self.model.time_to_live_ms
        elif self.raw.exists(f"{base}:x:holes"):  # it takes the line for longer than it is
            self._sweep_both()

    @rule()
    def foreign_get(self) -> None:
        base = self.bases
        self._sweep_both()  # else it may take what has expired, or was withdrawn near the head
        line = self.model.line
        if self.window_ms != FOREVER_MS and line and self.model.messages[line[0]].id:
            return  # when exactly it counts as finished is not told
        assert self.raw.rpop(f"{base}:consumer_free") is not None
        self.raw.set(f"{base}:consumer", "foreign")
        found = self.raw.rpop(base)
        expected = self.model.foreign_get()
        if found is not None and not self.model.is_closed:
            if not self.model.bound or self.raw.llen(base) < self.model.bound:
                self.raw.lpush(f"{base}:not_full", 0)
                self.raw.ltrim(f"{base}:not_full", 0, 0)
            self.raw.incr(f"{base}:stats:consumed_messages")
            self.raw.incr(f"{base}:stats:consumed_bytes", len(found))
        self.raw.lpush(f"{base}:consumer_free", 0)
        self._sweep_both()  # from a closed queue, or over holes, it does not mend not_full
        assert (found is None) == (expected is None)
        if found is not None:
            assert isinstance(found, bytes)
            assert found.endswith(expected or b"")

    # -- what must always hold ----------------------------------------------------------------------------------------

    @invariant()
    def a_step_is_counted(self) -> None:
        type(self).steps += 1  # invariants are checked once after each rule

    @invariant()
    def numbers_agree(self) -> None:
        if not hasattr(self, "model"):
            return
        queue = self.run(self.store.describe(self.name, **BUDGET))
        counts, model = queue.counts, self.model
        assert counts.length == len(model.line)
        holes = self.raw.zcard(f"{self.bases}:x:holes") if self.generation else 0  # else of the life before
        assert counts.length == self.raw.llen(self.bases) - holes
        assert counts.leased == len(model.leased)
        assert counts.delayed == len(model.delayed)
        assert counts.dead == len(model.dead)
        assert counts.returned == len(model.returned)
        assert counts.accepted == model.accepted
        assert counts.acked == model.acked
        assert counts.withdrawn == model.withdrawn
        assert counts.expired == model.expired
        assert counts.taken_by_foreign == model.foreign
        assert queue.is_closed == model.is_closed
        states = counts.length + counts.leased + counts.delayed + counts.dead
        assert counts.accepted == states + counts.acked + counts.expired + counts.withdrawn + counts.taken_by_foreign
        assert model.limit == 0 or counts.leased <= model.limit

    @invariant()
    def not_full_is_there_exactly_while_there_is_room(self) -> None:
        if not hasattr(self, "model"):
            return
        tokens = self.raw.llen(f"{self.bases}:not_full")
        has_room = self.model.bound == 0 or len(self.model.line) < self.model.bound
        assert tokens == (1 if has_room else 0)

    @precondition(lambda self: bool(self.generation))
    @rule()
    def begin_to_watch(self) -> None:
        places = self.run(self.store.places(self.name, [], with_shape=True, **BUDGET))
        assert places.shape is not None
        self.watched = Watched(places.numbers, places.shape)

    @invariant()
    def who_watches_knows_every_place(self) -> None:
        if not hasattr(self, "model") or self.watched is None or not self.generation:
            return
        known = self.watched.numbers
        feed = self.run(self.store.feed(self.name, generation=known.generation, logged=known.logged, **BUDGET))
        if feed.events is None:
            self.begin_to_watch()
        else:
            self.watched.apply(feed)
        assert self.watched.line() == self.model.line
        assert self.watched.numbers.length == len(self.model.line)
        assert self.watched.numbers.leased == len(self.model.leased)

    @precondition(lambda self: bool(self.generation))
    @rule(picks=st.lists(st.integers(0, 43), min_size=1, max_size=6))
    def look_for_messages(self, picks: list[int]) -> None:
        names, ids = self._names(picks)
        places = self.run(self.store.places(self.name, ids, with_shape=False, **BUDGET))
        for name, place in zip(names, places.places, strict=True):
            found = self.model.find(name)
            state = Whereabouts.UNKNOWN if found is None else Whereabouts(FINISHED.get(found.where, found.where))
            assert place.state is state, name
            if found is None:
                continue
            waits = found.where == "waiting"
            assert place.position == (self.model.line.index(found.ref) + 1 if waits else 0)
            assert str(place.outcome or "") == ("DEAD" if found.where == "dead" else found.outcome)
            assert place.result == found.result

    @invariant()
    def a_check_finds_nothing(self) -> None:
        if not hasattr(self, "model"):
            return
        findings = self.run(self.store.check(self.name, max_entries=10**6, **BUDGET)).findings
        assert [finding for finding in findings if "does no service sweep" not in finding] == []


@pytest.fixture(params=[CLOCK, CLOCK | NEAR_NOTHING], ids=["short lines", "as if long"])
def machine(store_server: StoreServer, request: pytest.FixtureRequest) -> type[QueueMachine]:
    class OnThisServer(QueueMachine):
        server = store_server
        replaced = request.param

    return OnThisServer


# For each of two variants. Hypothesis gives some examples up early, so the steps of one are fewer than it may have; by
# default two variants still do more than 5,000 on each store.
EXAMPLES = int(os.environ.get("HEADWAY_STATEFUL_EXAMPLES", "75"))
STEPS_AT_MOST, STEPS_AT_LEAST = 60, 35


@pytest.mark.timeout(60 + 3 * EXAMPLES)
def test_scripts_do_what_the_model_says(machine: type[QueueMachine], figure: Callable[[str, str], None]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS_AT_MOST,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            report_multiple_bugs=False,
            phases=PHASES,
        ),
    )
    figure("steps that model and scripts did alike", f"{machine.steps:,} in {EXAMPLES:,} examples")
    assert machine.steps >= STEPS_AT_LEAST * EXAMPLES


def test_redis_errors_would_not_pass_unnoticed(store_server: StoreServer) -> None:
    """The machine's clock is really the scripts' clock: without the key they fail."""
    built = scripts.build("sweep", CLOCK)
    with store_server.client() as raw:
        raw.delete(CLOCK_KEY)
        raw.set("stateful:clockless:bound", 0)
        with pytest.raises(redis.ResponseError):
            raw.eval(built.text, 1, "stateful:clockless", "00" * 8, "stateful")
        raw.delete("stateful:clockless:bound")
