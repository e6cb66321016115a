"""What clients do to a queue, to the model and to the scripts: each rule one call."""

from __future__ import annotations

from typing import Any, ClassVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from headwayd.domain.errors import HeadwayError, QueueDrained
from headwayd.domain.model import (
    DeadMessage,
    DelayOrder,
    Delivery,
    GetOrder,
    NewMessage,
    OnDuplicate,
    Policy,
    PutCode,
    PutOutcome,
    WithdrawOutcome,
)
from headwayd.engine.ports import GetAsk, GetStep
from stateful.machines import BUDGET, StoreMachine
from stateful.model import Model

FOREVER_MS = 7 * 24 * 3_600_000
PAYLOADS = st.sampled_from([b"", b"a", b"bb", b"\x00\xff", b"\xf5HW\x01", b"\xf5HW\x01" + b"\x00" * 30, b"x" * 300])
IDS = st.sampled_from(["", "", "", "one", "two", "three", "ünï"])
DELAYS = st.sampled_from([0, 0, 0, 1, 500, 3_000])
LIVES = st.sampled_from([0, 0, 0, 0, 1, 700, 4_000])
MESSAGES = st.lists(st.tuples(PAYLOADS, IDS, DELAYS, LIVES), min_size=1, max_size=5)
SHORT_WINDOW_MS = 1_500


class ClientsMachine(StoreMachine):
    """Several clients who remember every lease they ever had."""

    process = "headway/stateful/1/0"

    most_moved: ClassVar[int]  # what the scripts have

    def __init__(self) -> None:
        super().__init__()
        self.leases: list[tuple[int, int, str]] = []  # in which life, ticket, token
        self.life = 0
        self.model: Model

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
        self.told: list[str] = []  # the made ids that clients heard of, as the model has them
        self.model = Model(**self.shape, window_ms=self.window_ms, now=self.now, most_moved=self.most_moved)

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
        others=st.integers(0, 2),
    )
    def get(self, most: int, lease_ms: int, picks: list[int], max_bytes: int, *, attempt: str, others: int) -> None:
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
            step = self._got(order, 0 if attempt else min(others, order.max_messages - 1))
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

    def _got(self, order: GetOrder, others: int) -> GetStep:
        """The same asked for by several together; what each of the `others` wants is one message."""
        if not others:
            return self.run(self.store.get(order, **BUDGET))
        mosts = [order.max_messages - others, *[1] * others]
        orders = [order._replace(max_messages=most, ack=()) for most in mosts]
        orders[-1] = orders[-1]._replace(ack=order.ack)
        steps = self.run(self.store.get_together(list(map(GetAsk, orders)), **BUDGET))
        if error := next((step for step in steps if isinstance(step, QueueDrained)), None):
            assert [isinstance(step, QueueDrained) for step in steps] == [not one.ack for one in orders]
            if not order.ack:
                raise error
            return cast(GetStep, steps[-1])
        done = cast(list[GetStep], steps)
        counts = [len(step.deliveries) for step in done]
        for i, most in enumerate(mosts):
            assert counts[i] == most or not any(counts[i + 1 :])
        secrets = [{delivery.lease[22:44] for delivery in step.deliveries} for step in done]
        assert len(set().union(*secrets)) == sum(map(bool, counts))
        together = [delivery for step in done for delivery in step.deliveries]
        return done[-1]._replace(deliveries=together)

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
            step = self.run(self.store.redrive(self.name, "", message_ids=ids, most=most, **BUDGET))
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
