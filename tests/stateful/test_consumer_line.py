"""Model and scripts, driven together through the consumer line: whatever Hypothesis thinks of, both must say the same.

Two processes are heard in the store or not, as the machine likes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from harness import StoreServer
from headwayd.domain.errors import HeadwayError
from headwayd.domain.hints import PollHints
from headwayd.domain.model import GetOrder, NewMessage, OnDuplicate, Policy
from headwayd.domain.places import NEAR
from headwayd.domain.standing import Waiter
from headwayd.engine.ports import GetAsk, GetStep, Wait
from headwayd.store import keys
from stateful.line_model import Lease, LineModel
from stateful.machines import BUDGET, CLOCK_KEY, EXAMPLES, PREFIX, StoreMachine, run_examples

HERE, THERE = "headway/line/1", "headway/line/2"
LEASE_MS = 3_000
STEPS_AT_MOST, STEPS_AT_LEAST = 80, 60


def text(value: Any) -> str:
    """What the store has, as text."""
    return str(value, "utf-8")


class LineMachine(StoreMachine):
    """One queue, waiters of two processes, pollers, and a clock."""

    process = HERE

    def __init__(self) -> None:
        super().__init__()
        self.ears = {process: self.raw.pubsub() for process in (HERE, THERE)}  # type: ignore[no-untyped-call]
        self.waiters: list[Waiter] = []  # all that ever were, as their processes know them
        self.tokens: list[str] = []
        self.places: list[str] = []
        self.count = 0
        self.model: LineModel

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            for ear in self.ears.values():
                ear.close()

    @initialize(
        limit=st.sampled_from([0, 1, 2, 3]),
        turns=st.sampled_from([0, 1, 2]),
        grace_ms=st.sampled_from([0, 0, 1_500]),
        strikes=st.sampled_from([1, 2, 3]),
        tolerance_ms=st.sampled_from([0, 100]),
    )
    def create(self, limit: int, turns: int, grace_ms: int, strikes: int, tolerance_ms: int) -> None:
        policy = Policy(
            limit=limit,
            turns=turns,
            place_grace_ms=grace_ms,
            poll_strikes=strikes,
            poll_tolerance_ms=tolerance_ms,
            lease_ms=LEASE_MS,
        )
        self.run(self.store.create(self.name, policy, **BUDGET))
        self.model = LineModel(
            now=self.now,
            limit=limit,
            turns_most=turns,
            grace_ms=grace_ms,
            strikes_most=strikes,
            tolerance_ms=tolerance_ms,
        )
        for process in (HERE, THERE):
            self.hear(process, is_heard=True)

    def hear(self, process: str, *, is_heard: bool) -> None:
        channel = f"{PREFIX}{keys.WAKE_CHANNEL}{process}"
        ear = self.ears[process]
        (ear.subscribe if is_heard else ear.unsubscribe)(channel)
        wanted = "subscribe" if is_heard else "unsubscribe"
        while (message := ear.get_message(timeout=5)) is not None and message["type"] != wanted:
            pass
        (self.model.present.add if is_heard else self.model.present.discard)(process)

    # -- what consumers do --------------------------------------------------------------------------------------------

    @rule(
        process=st.sampled_from([HERE, HERE, THERE]),
        kind=st.sampled_from(["plain", "waits", "waits", "owns", "keeps", "keeps"]),
        most=st.sampled_from([1, 1, 2, 3]),
        ack=st.lists(st.integers(0, 3), max_size=2),
        place=st.sampled_from([None, None, 0, 1, 2]),
    )
    def a_new_one_gets(self, process: str, kind: str, most: int, ack: list[int], place: int | None) -> None:
        self.count += 1
        waiter = Waiter(
            name="" if kind == "plain" else f"{process}#{self.count}",
            place=self.places[-1 - place] if place is not None and place < len(self.places) and kind != "plain" else "",
            owns_leases=kind in {"owns", "keeps"},
            keeps_standing=kind == "keeps",
        )
        self._get(waiter, most, self._live(ack) if kind in {"plain", "waits"} else [])

    @precondition(lambda self: self.waiters)
    @rule(pick=st.integers(0, 5), most=st.sampled_from([1, 1, 2]))
    def one_that_waits_tries_again(self, pick: int, most: int) -> None:
        waiter = self.waiters[-1 - pick % len(self.waiters)]
        if not self.model.held(waiter.name):
            self._get(waiter, most, [])

    @rule(
        process=st.sampled_from([HERE, HERE, THERE]),
        asks=st.lists(st.tuples(st.booleans(), st.sampled_from([1, 1, 2, 3])), min_size=2, max_size=4),
        ack=st.lists(st.integers(0, 3), max_size=3),
    )
    def new_ones_get_together(self, process: str, asks: list[tuple[bool, int]], ack: list[int]) -> None:
        waiters = []
        for waits, _ in asks:
            self.count += 1
            waiters.append(Waiter(name=f"{process}#{self.count}" if waits else ""))
        self._get_together(waiters, [most for _, most in asks], self._live(ack))

    @precondition(lambda self: len(self._who_can_go_together()) > 1)
    @rule(picks=st.sets(st.integers(0, 5), min_size=2, max_size=4), most=st.sampled_from([1, 1, 2]))
    def some_that_wait_try_again_together(self, picks: set[int], most: int) -> None:
        can = self._who_can_go_together()
        waiters = [can[pick] for pick in sorted(picks) if pick < len(can)]
        if len(waiters) > 1:
            self._get_together(waiters, [most] * len(waiters), [])

    def _who_can_go_together(self) -> list[Waiter]:
        return sorted((one for one in self.waiters if one.number and not one.owns_leases), key=lambda one: one.number)

    def _get_together(self, waiters: list[Waiter], mosts: list[int], ack: list[str]) -> None:
        orders = [
            GetOrder(queue=self.name, max_messages=most, ack=ack[i :: len(waiters)], max_bytes=10**7)
            for i, most in enumerate(mosts)
        ]
        asks = [
            (waiter.name, waiter.number, order.max_messages, list(order.ack))
            for waiter, order in zip(waiters, orders, strict=True)
        ]
        all_given = self.model.get_together(asks)
        steps = self.run(self.store.get_together(list(map(GetAsk, orders, waiters)), **BUDGET))
        self.waiters = [one for one in self.waiters if one not in waiters]
        for waiter, order, step, given in zip(waiters, orders, steps, all_given, strict=True):
            assert isinstance(step, GetStep)
            assert len(step.deliveries) == given.count
            assert len(step.settled) == len(order.ack)
            assert (step.wait is Wait.NOTHING) == (given.count > 0)
            secrets = {delivery.lease[22:44] for delivery in step.deliveries}
            assert len(secrets) == min(given.count, 1)
            assert not any(token[22:44] in secrets for token in self.tokens)
            for delivery in step.deliveries:
                self.model.leases[delivery.lease] = Lease(self.now + LEASE_MS, None)
                self.tokens.append(delivery.lease)
            told = (step.position, step.length, step.number, step.was_dropped)
            assert told == (given.position, given.length, given.number, given.was_dropped)
            if waiter.name and not given.count:
                self.waiters.append(Waiter(name=waiter.name, number=step.number))
        self.model.commit()

    def _live(self, picks: list[int]) -> list[str]:
        """Leases that are out, and are when their deadlines are looked at first."""
        live = [token for token in self.tokens if token in self.model.leases]
        live = [token for token in live if self.model.leases[token].deadline > self.now]
        return list(dict.fromkeys(live[pick] for pick in picks if pick < len(live)))

    def _get(self, waiter: Waiter, most: int, ack: list[str]) -> None:
        order = GetOrder(queue=self.name, max_messages=most, ack=ack, max_bytes=10**7)
        keeps = waiter.keeps_standing if waiter.owns_leases else None
        given = self.model.get(waiter.name, number=waiter.number, place=waiter.place, most=most, ack=ack, keeps=keeps)
        self.waiters = [one for one in self.waiters if one.name != waiter.name]
        try:
            step = self.run(self.store.get(order, waiter=waiter, **BUDGET))
        except HeadwayError as error:
            assert error.reason.name == given.refused
            return
        assert given.refused == ""
        assert len(step.deliveries) == given.count
        owner = waiter.name if waiter.owns_leases else None
        for delivery in step.deliveries:
            self.model.leases[delivery.lease] = Lease(self.now + LEASE_MS, owner)
            self.tokens.append(delivery.lease)
        self.model.commit()
        if not waiter.name:
            return
        told = (step.position, step.length, step.was_dropped)
        assert told == (given.position, given.length, given.was_dropped)
        if not given.count:
            assert step.number == given.number
        number = 0 if given.count else step.number
        if not given.count or waiter.owns_leases:
            self.waiters.append(
                Waiter(
                    name=waiter.name,
                    number=number,
                    owns_leases=waiter.owns_leases,
                    keeps_standing=waiter.keeps_standing,
                )
            )

    @rule(count=st.integers(1, 3))
    def put(self, count: int) -> None:
        self.model.put(count)
        self.run(
            self.store.put(
                self.name,
                [NewMessage(payload=b"x")] * count,
                producer="p",
                waiter="",
                line_ticket=0,
                on_duplicate=OnDuplicate.REJECT,
                all_or_nothing=False,
                **BUDGET,
            )
        )

    @rule(picks=st.lists(st.integers(0, 3), min_size=1, max_size=3), how=st.sampled_from(["ack", "ack", "give", "own"]))
    def settle(self, picks: list[int], how: str) -> None:
        tokens = self._live(picks)
        self.model.do_due()
        self.model.end(tokens, back=how != "ack", is_settled=how != "own")
        self.model.commit()
        if how == "ack":
            self.run(self.store.ack(self.name, tokens, **BUDGET))
        else:
            self.run(self.store.release(self.name, tokens, owned=how == "own", **BUDGET))

    @precondition(lambda self: self.waiters)
    @rule(pick=st.integers(0, 5))
    def leave(self, pick: int) -> None:
        waiter = self.waiters.pop(-1 - pick % len(self.waiters))
        self.model.leave(waiter.name)
        self.run(self.store.stop_standing(self.name, waiter.name, **BUDGET))

    @precondition(lambda self: self.waiters)
    @rule(
        pick=st.integers(0, 5),
        window=st.sampled_from([None, (100, 1_000), (500, 4_000), (1_000, 4_000)]),
        old=st.booleans(),
        is_number_known=st.booleans(),
    )
    def keep_a_place(self, pick: int, window: tuple[int, int] | None, old: bool, is_number_known: bool) -> None:
        waiter = self.waiters.pop(-1 - pick % len(self.waiters))
        if not is_number_known:
            waiter = Waiter(name=waiter.name)
        spare = [place for place in self.places if place not in self.model.line]
        place = spare[-1] if old and spare else f"@{len(self.places)}"
        if place not in self.places:
            self.places.append(place)
        hints = None if window is None else PollHints(*window)
        min_ms, max_ms = window or (0, -1)
        told = self.model.keep(waiter.name, place, number=waiter.number, min_ms=min_ms, max_ms=max_ms)
        standing, _ = self.run(self.store.keep_place(self.name, waiter, place, hints, **BUDGET))
        assert (standing.position, standing.length) == told

    @rule(stand_again=st.booleans())
    def look_at_all(self, stand_again: bool) -> None:
        waiters = self.waiters
        if stand_again:
            for waiter in waiters:
                if waiter.number:
                    self.model.line.setdefault(waiter.name, waiter.number)
        self.model.commit()
        found = self.run(self.store.footings(self.name, waiters, stand_again=stand_again, **BUDGET))
        assert found.numbers.consumers_waiting == len(self.model.line)
        assert (found.numbers.consumers_ready, found.numbers.consumers_awaited) == self.model.there()
        last_near = self.model.order()[NEAR - 1 : NEAR]
        assert found.near_number == (self.model.line[last_near[0]] if last_near else None)
        for waiter, footing in zip(waiters, found.footings, strict=True):
            assert footing.position == self.model.position(waiter.name)
            assert footing.number == self.model.line.get(waiter.name, 0)
            assert footing.owned == self.model.held(waiter.name)

    # -- processes and time -------------------------------------------------------------------------------------------

    @rule(process=st.sampled_from([HERE, THERE, THERE]), is_heard=st.sampled_from([True, True, False]))
    def a_process_comes_or_goes(self, process: str, is_heard: bool) -> None:
        if (process in self.model.present) != is_heard:
            self.hear(process, is_heard=is_heard)

    @rule(spared=st.sampled_from([set(), {THERE}, {HERE, THERE}]))
    def tidy_up_after_the_gone(self, spared: set[str]) -> None:
        self.model.drop_absent(spared)
        self.run(self.store.drop_absent(self.name, spared=spared, **BUDGET))

    @rule(ms=st.sampled_from([1, 99, 400, 999, 1_000, 1_001, 2_000, 3_000]), sweeps=st.booleans())
    def time_passes(self, ms: int, sweeps: bool) -> None:
        self.now += ms
        self.model.now = self.now
        self.raw.set(CLOCK_KEY, self.now)
        if sweeps:
            self.model.do_due()
            self.model.commit()
            self.run(self.store.sweep(self.name, **BUDGET))

    # -- what must always hold ----------------------------------------------------------------------------------------

    @invariant()
    def the_line_is_the_models(self) -> None:
        if not hasattr(self, "model"):
            return
        base = self.base
        order = [text(member) for member in self.raw.zrange(f"{base}:x:consumers", 0, -1)]
        assert order == self.model.order()
        assert int(self.raw.llen(base)) == self.model.ready
        bundled = int(self.raw.hget(f"{base}:x:meta", "n_bundled") or 0)
        assert int(self.raw.zcard(f"{base}:x:leases")) + bundled == len(self.model.leases)
        turns = {text(waiter): int(count) for waiter, count in self.raw.hgetall(f"{base}:x:turns").items()}
        assert turns == self.model.turns
        places = {text(place) for place in self.raw.hkeys(f"{base}:x:places")}
        assert places == set(self.model.kept)
        assert not self.model.limit or len(self.model.leases) <= self.model.limit


@pytest.fixture
def machine(store_server: StoreServer) -> type[LineMachine]:
    class OnThisServer(LineMachine):
        server = store_server

    return OnThisServer


@pytest.mark.long
@pytest.mark.timeout(60 + 3 * EXAMPLES)
def test_the_consumer_line_does_what_the_model_says(
    machine: type[LineMachine], figure: Callable[[str, str], None]
) -> None:
    done = run_examples(machine, steps_at_most=STEPS_AT_MOST, steps_at_least=STEPS_AT_LEAST)
    figure("steps that model and scripts of the consumer line did alike", done)
