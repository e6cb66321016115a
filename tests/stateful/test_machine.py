"""Model and scripts, driven together: whatever Hypothesis thinks of, both must say the same.

Here are operators, time and foreign clients; `clients` has what clients do, `watching` what must hold then.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from harness import StoreServer
from headwayd.domain.model import DelayOrder, OnDuplicate, Policy, Purged
from headwayd.store import keys, scripts
from stateful.clients import FOREVER_MS
from stateful.machines import BUDGET, CLOCK, CLOCK_KEY, EXAMPLES, run_examples
from stateful.state import NOBODYS
from stateful.watching import WatchedMachine

# How near to an end of the list an element is taken out at once, and how many one that comes back may have moved. In
# use it is more than any list here is long; so that what happens in long ones is seen, too, the machine also runs with
# next to nothing of each.
REACH = "local NEAR = {near}\nlocal MOST_MOVED = {moved}\nlocal MOST_PASSED, NODE_BYTES = 100000, 8192\n"
MANY = 4_096
# For each of three variants. By default two variants still do more than 5,000 on each store.
STEPS_AT_MOST, STEPS_AT_LEAST = 60, 35


class QueueMachine(WatchedMachine):
    """One queue, several clients, operators, a foreign client, and a clock."""

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

    @precondition(lambda self: not self.model.is_closed and self.model.bound == 0)
    @rule(how=st.sampled_from(["given back", "lapses", "stays"]))
    def go_on_with_a_lease_that_lapsed(self, how: str) -> None:
        """Of a message that then has others before and behind it, of which that line has enough: it is taken from its
        middle, and may come back to it."""
        self.put([(b"a", "", 0, 0)] * 4, OnDuplicate.REJECT, False)
        self.get(4, 100, [], 10_000_000, attempt="", others=0)
        self.put([(b"bb", "", 0, 0)] * 3, OnDuplicate.REJECT, False)
        self.let_time_pass(100)
        self.sweep()
        self.extend([0], 1_000)
        if how == "lapses":
            self.let_time_pass(1_000)
            self.sweep()
        elif how == "given back":
            self.delay([0], [], ("delay", 0), True)

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
        base = self.base
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
        base = self.base
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
        base = self.base
        holes = None
        while holes != (holes := self.raw.zcard(f"{base}:x:holes")):  # a step takes out but the first near the head
            self._sweep_both()  # else it may take what has expired, or what left the line near the head
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

    @precondition(lambda self: not self.model.is_closed and self.model.bound == 0 and self.model.line)
    @rule(picks=st.lists(st.integers(0, 43), min_size=1, max_size=3), gives_back=st.booleans())
    def foreign_put_and_get_at_once(self, picks: list[int], *, gives_back: bool) -> None:
        """Between what both did to the line and what they count something leaves it, then leases come back."""
        base, model = self.base, self.model
        holes = None
        while holes != (holes := self.raw.zcard(f"{base}:x:holes")):  # as above
            self._sweep_both()
        if not model.line or (self.window_ms != FOREVER_MS and model.messages[model.line[0]].id):
            return
        head = model.name_of(("ticket", model.line[0]), model.messages[model.line[0]])
        named = [both for both in zip(*self._names(picks), strict=True) if both[0] not in (head, str(model.tail + 1))]
        for role in ("producer", "consumer"):
            assert self.raw.rpop(f"{base}:{role}_free") is not None
        self.raw.rpop(base)
        self.raw.lpush(base, b"foreign")
        model.foreign_get()
        message = model.foreign_put(b"foreign")
        outcomes = self.run(self.store.withdraw(self.name, [made for _, made in named], **BUDGET))
        assert [self._withdrawn(outcome) for outcome in outcomes] == model.withdraw([name for name, _ in named])
        live = [(ticket, token) for life, ticket, token in self.leases if life == self.life and ticket in model.leased]
        if gives_back and live:
            order = DelayOrder(queue=self.name, leases=[token for _, token in live], delay_ms=0, keep_attempt=True)
            results = self.run(self.store.delay(order, **BUDGET))
            assert [r.settled.name for r in results] == model.delay(live, [], mode="delay", ms=0, keeps=True)
            for ticket in model.returned:
                if ticket in {ticket for ticket, _ in live}:
                    model.messages[ticket].token = NOBODYS
        for role, counter in (("producer", "produced_messages"), ("consumer", "consumed_messages")):
            self.raw.incr(f"{base}:stats:{counter}")
            self.raw.lpush(f"{base}:{role}_free", 0)
        self._sweep_both()
        if model.time_to_live_ms:
            message.expires_at = self.now + model.time_to_live_ms


@pytest.fixture(params=[(MANY, MANY), (2, MANY), (MANY, 1)], ids=["short lines", "as if long", "as if many came back"])
def machine(store_server: StoreServer, request: pytest.FixtureRequest) -> type[QueueMachine]:
    near, moved = request.param

    class OnThisServer(QueueMachine):
        server = store_server
        replaced = CLOCK | {"reach": REACH.format(near=near, moved=moved)}
        most_moved = moved

    return OnThisServer


@pytest.mark.long
@pytest.mark.timeout(60 + 3 * EXAMPLES)
def test_scripts_do_what_the_model_says(machine: type[QueueMachine], figure: Callable[[str, str], None]) -> None:
    done = run_examples(machine, steps_at_most=STEPS_AT_MOST, steps_at_least=STEPS_AT_LEAST)
    figure("steps that model and scripts did alike", done)


def test_redis_errors_would_not_pass_unnoticed(store_server: StoreServer) -> None:
    """The machine's clock is really the scripts' clock: without the key they fail."""
    built = scripts.build("sweep", CLOCK)
    with store_server.client() as raw:
        raw.delete(CLOCK_KEY)
        raw.set("stateful:clockless:bound", 0)
        with pytest.raises(redis.ResponseError):
            raw.eval(built.text, 1, "stateful:clockless", "00" * 8, "stateful")
        raw.delete("stateful:clockless:bound")
