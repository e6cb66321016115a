"""Deliberate defects, each with the named test that must catch it. One entry is all it takes to add one.

`old` is a fragment that occurs exactly once in `file`, as short and lasting as can be. `test` is the most specific test
that fails with the defect every time, not one that happens to.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LUA = "store/lua/"
INCLUDE = "store/lua/include/"
EXACT = "tests/integration/test_exact_instants.py::"
WIRE = "tests/wire/"
LOST = "tests/faults/test_line_answers_lost.py::"
ENDS = "tests/faults/test_streams_end.py::"


class MutantDoesNotFit(Exception):
    """The code has changed under a mutant; the text says how to repair the table."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One defect: `old` becomes `new` in `file` (below service/headwayd), and `test` must fail."""

    name: str
    defect: str
    file: str
    old: str
    new: str
    test: str

    def misfit(self, service: Path) -> str:
        """Empty if the defect can be made in the package below `service`; else what to do."""
        path = service / "headwayd" / self.file
        if not path.exists():
            return f"{self.name}: there is no service/headwayd/{self.file} any more. {_REPAIR}"
        found = path.read_text().count(self.old)
        if found == 1:
            return ""
        return (
            f"{self.name}: its old text occurs {found} times in service/headwayd/{self.file} and must occur once.\n"
            f"  old text: {self.old!r}\n  {_REPAIR}"
        )

    def apply(self, service: Path) -> None:
        """Makes the defect in a copy. Raises MutantDoesNotFit."""
        if text := self.misfit(service):
            raise MutantDoesNotFit(text)
        path = service / "headwayd" / self.file
        path.write_text(path.read_text().replace(self.old, self.new))


_REPAIR = (
    "In tests/mutants/table.py give this entry the line as it is written now, so that it still makes the defect it"
    " describes, and run `make mutants ARGS=<its name>`. Remove an entry only if its defect cannot be made any more."
)

MUTANTS: tuple[Mutant, ...] = (
    # Who may settle what.
    Mutant(
        name="nonce-not-compared",
        defect="Any token with the right generation and ticket settles the message, whoever holds it now.",
        file=INCLUDE + "settle.lua",
        old="elseif record and record.nonce == nonce then",
        new="elseif record then",
        test=EXACT + "test_a_token_of_another_attempt_is_stale_though_all_else_is_right",
    ),
    Mutant(
        name="generation-not-compared",
        defect="A token of another life of the queue has a say in this one.",
        file=INCLUDE + "settle.lua",
        old="ARGV[at] ~= S.gen",
        new="false",
        test=EXACT + "test_a_token_of_another_generation_is_gone_though_all_else_is_right",
    ),
    Mutant(
        name="late-ack-after-newer-lease",
        defect="A late ack is accepted though somebody else took the message since and gave it back.",
        file=INCLUDE + "settle.lua",
        old="record.nonce ~= nonce or ",
        new="",
        test=EXACT + "test_a_late_ack_is_stale_once_another_lease_lapsed_after_it",
    ),
    Mutant(
        name="late-ack-leaves-message",
        defect="A late ack is said to be done, and the message stays in the line.",
        file=INCLUDE + "settle.lua",
        old="end_of(i, ticket, record, (take_one(S, ticket)))",
        new="end_of(i, ticket, record, '')",
        test=WIRE + "test_ack.py::test_a_late_ack_is_accepted_while_nobody_has_taken_the_message",
    ),
    Mutant(
        name="ack-forgotten",
        defect="A settled ticket is not remembered, so a repeated ack is told GONE.",
        file=INCLUDE + "names.lua",
        old="S.changed_pages[field] = true",
        new="S.changed_pages[field] = nil",
        test=WIRE + "test_ack.py::test_acking_again_is_already_acked",
    ),
    # Attempts and the way to the dead.
    Mutant(
        name="lapse-costs-no-attempt",
        defect="A lapsed lease is no failed delivery: a message that kills its workers is delivered for ever.",
        file=INCLUDE + "due.lua",
        old="record.failures = record.failures + 1",
        new="record.failures = record.failures",
        test=WIRE + "test_lapse.py::test_lapsed_leases_spend_attempts_until_the_message_is_dead",
    ),
    Mutant(
        name="one-attempt-too-many",
        defect="A message is delivered max_attempts + 1 times.",
        file=INCLUDE + "line.lua",
        old="failures >= most",
        new="failures > most",
        test=WIRE + "test_delay.py::test_a_message_that_used_up_its_attempts_is_dead",
    ),
    Mutant(
        name="body-dropped-before-burial",
        defect="The move to the dead takes two steps: the body is gone before the corpse is written.",
        file=INCLUDE + "names.lua",
        old="pack_corpse(S.now, cause, record, element)",
        new="pack_corpse(S.now, cause, record, '')",
        test=EXACT + "test_one_step_moves_a_message_to_the_dead_with_its_body",
    ),
    Mutant(
        name="burial-left-to-the-next-step",
        defect="The move to the dead takes two steps: after the first one the message is in no state at all.",
        file=INCLUDE + "names.lua",
        old="redis.call('ZADD', K.dead, S.died, ref)",
        new="",
        test=EXACT + "test_one_step_moves_a_message_to_the_dead_with_its_body",
    ),
    Mutant(
        name="release-costs-an-attempt",
        defect="A message given back because its caller went away counts as failed.",
        file="store/message_steps.py",
        old='"u", budget_s=budget_s',
        new='"0", budget_s=budget_s',
        test="tests/faults/test_vanished_callers.py"
        "::test_a_caller_whose_connection_breaks_gives_back_what_it_was_given",
    ),
    Mutant(
        name="vanished-caller-keeps-its-leases",
        defect="What a Get is given after its caller went away is not given back, and lies until it lapses.",
        file="engine/consumers.py",
        old="partial(self._release, queue, leases[start : start + _MOST_AT_ONCE], waiter)",
        new="lambda: asyncio.sleep(0)",
        test="tests/faults/test_vanished_callers.py"
        "::test_a_caller_whose_connection_breaks_gives_back_what_it_was_given",
    ),
    Mutant(
        name="taking-up-again-costs-an-attempt",
        defect="A lapsed lease that Extend takes up again still counts as a failed delivery.",
        file=LUA + "extend.lua",
        old="record.failures = record.failures - 1",
        new="",
        test=EXACT + "test_a_lapsed_lease_that_is_taken_up_again_has_cost_no_attempt",
    ),
    Mutant(
        name="stop-forgets-releases",
        defect="A stopping engine waits for what runs, but not for the releases that this starts.",
        file="engine/tasks.py",
        old="while self._tasks and (left_s := until - loop.time()) > 0:",
        new="if self._tasks and (left_s := until - loop.time()) > 0:",
        test="tests/unit/test_stopping.py"
        "::test_what_a_vanished_caller_is_given_is_given_back_before_the_engine_has_stopped",
    ),
    Mutant(
        name="stop-forgets-answers",
        defect="A stopping engine forgets the answers whose callers went away, and with them the leases in them.",
        file="engine/consumers.py",
        old='self._spawn(self._give_up_late(consumer, task), f"late:{consumer.order.queue}")',
        new="asyncio.ensure_future(self._give_up_late(consumer, task))",
        test="tests/unit/test_stopping.py"
        "::test_what_a_vanished_caller_is_given_is_given_back_before_the_engine_has_stopped",
    ),
    # Time.
    Mutant(
        name="lease-due-a-moment-late",
        defect="A lease lapses after its deadline instead of at it: < for <=.",
        file=INCLUDE + "due.lua",
        old="'ZREVRANGEBYSCORE', K.leases, S.now,",
        new="'ZREVRANGEBYSCORE', K.leases, S.now - 1,",
        test=EXACT + "test_a_lease_lapses_at_its_deadline_and_not_a_millisecond_before",
    ),
    Mutant(
        name="delayed-due-a-moment-late",
        defect="A delayed message falls due after its instant instead of at it: < for <=.",
        file=INCLUDE + "due.lua",
        old="'ZRANGEBYSCORE', K.delayed, '-inf', S.now",
        new="'ZRANGEBYSCORE', K.delayed, '-inf', S.now - 1",
        test=EXACT + "test_a_delayed_message_is_due_at_its_instant_and_not_a_millisecond_before",
    ),
    Mutant(
        name="lease-due-a-moment-early",
        defect="A lease lapses a millisecond before its deadline.",
        file=INCLUDE + "due.lua",
        old="'ZREVRANGEBYSCORE', K.leases, S.now,",
        new="'ZREVRANGEBYSCORE', K.leases, S.now + 1,",
        test=EXACT + "test_a_lease_lapses_at_its_deadline_and_not_a_millisecond_before",
    ),
    Mutant(
        name="ties-out-of-order",
        defect="Messages due at one instant are ordered as text: the tenth before the second.",
        file=INCLUDE + "names.lua",
        old="'%015.0f'",
        new="'%.0f'",
        test=EXACT + "test_more_than_nine_messages_due_at_one_instant_keep_their_order",
    ),
    Mutant(
        name="earlier-due-not-announced",
        defect="Only the first due time is announced, so other processes sleep through an earlier one.",
        file=INCLUDE + "commit.lua",
        old="due < S.due_said",
        new="false",
        test=EXACT + "test_an_earlier_instant_is_announced_to_every_process_and_a_later_one_is_not",
    ),
    Mutant(
        name="announcements-not-heard",
        defect="A process visits only what it heard of in its own calls; due times of the others' queues are missed.",
        file="store/hints.py",
        old="self.on_due(queue, int(what))",
        new="pass",
        test="tests/integration/test_due_elsewhere.py"
        "::test_what_a_killed_process_left_is_done_in_time_by_one_that_was_never_asked_for_the_queue",
    ),
    Mutant(
        name="sweeper-asleep",
        defect="The sweeper is not told of due times: nothing lapses on a queue that nobody touches.",
        file="engine/engine.py",
        old="self._store.on_due(self._sweeper.note)",
        new="pass",
        test=WIRE + "test_lapse.py"
        "::test_a_lapsed_lease_returns_its_message_to_the_head_though_nobody_touches_the_queue",
    ),
    Mutant(
        name="backoff-one-step-ahead",
        defect="The exponent of the backoff is off by one: 2, 4, 8 … for 1, 2, 4 …",
        file=INCLUDE + "line.lua",
        old="^ (failures - 1)",
        new="^ failures",
        test=WIRE + "test_delay_backoff.py::test_the_default_backoff_is_1_2_4_seconds",
    ),
    Mutant(
        name="backoff-overflows",
        defect="The wait wraps around after some 62 failures, as 64-bit integers would.",
        file=INCLUDE + "line.lua",
        old="policy_of(S, 'multiplier') ^ (failures - 1)",
        new="(policy_of(S, 'multiplier') ^ (failures - 1) % 2 ^ 61)",
        test=EXACT + "test_the_wait_doubles_with_each_failure_up_to_the_longest_and_never_overflows",
    ),
    Mutant(
        name="expiry-left-to-nobody",
        defect="The time to live of a waiting message is not looked at.",
        file=INCLUDE + "due.lua",
        old="if S.expiring == 0 then return 0 end",
        new="if true then return 0 end",
        test=WIRE + "test_time_to_live.py::test_a_waiting_message_expires_though_nobody_touches_the_queue",
    ),
    # Order, bounds, slots.
    Mutant(
        name="returned-out-of-order",
        defect="Messages that come back together stand the wrong way round.",
        file=INCLUDE + "line.lua",
        old="a.ticket < b.ticket",
        new="a.ticket > b.ticket",
        test=WIRE + "test_delay.py::test_a_batch_given_back_stands_in_ticket_order_whatever_the_order_of_the_leases",
    ),
    Mutant(
        name="one-slot-too-many",
        defect="The limit is off by one: as if it had been counted before another lease was given.",
        file=LUA + "get.lua",
        old="limit - leased",
        new="limit + 1 - leased",
        test=WIRE + "test_get.py::test_a_queue_with_a_limit_leases_no_more_than_its_slots",
    ),
    Mutant(
        name="lapsed-lease-takes-a-slot-too-many",
        defect="Extend takes up a lapsed lease though every slot is out.",
        file=LUA + "extend.lua",
        old="redis.call('ZCARD', K.leases) < limit",
        new="redis.call('ZCARD', K.leases) <= limit",
        test=WIRE + "test_extend.py::test_with_every_slot_taken_a_lapsed_lease_stays_lapsed",
    ),
    Mutant(
        name="bound-exceeded-by-one",
        defect="A full queue takes one more message.",
        file=INCLUDE + "queue.lua",
        old="math.max(0, S.bound - S.len)",
        new="math.max(0, S.bound + 1 - S.len)",
        test=WIRE + "test_put_bound.py::test_a_full_queue_is_refused_with_its_bound_and_when_to_try_again",
    ),
    Mutant(
        name="not-full-token-stays",
        defect="pressure's token for room is not taken away when the queue is full, so foreign producers overfill it.",
        file=INCLUDE + "queue.lua",
        old="redis.call('DEL', K.not_full)",
        new="redis.call('EXISTS', K.not_full)",
        test=EXACT + "test_pressures_token_is_there_exactly_while_there_is_room",
    ),
    Mutant(
        name="newcomers-overtake-producers",
        defect="A Put takes room that the first producer in line has been waiting for.",
        file=LUA + "put.lua",
        old="local has_turn = not first or first == WAITER",
        new="local has_turn = true",
        test=EXACT + "test_room_is_the_first_waiting_producers_whoever_else_asks",
    ),
    Mutant(
        name="producers-last-come-first-served",
        defect="The producer line is ordered the wrong way round.",
        file=INCLUDE + "queue.lua",
        old="'ZADD', K.producers, 'NX', number, waiter",
        new="'ZADD', K.producers, 'NX', -number, waiter",
        test=EXACT + "test_room_is_the_first_waiting_producers_whoever_else_asks",
    ),
    Mutant(
        name="rest-of-a-cut-answer-lost",
        defect="Messages that did not fit into an answer are not put back into the line.",
        file=LUA + "get.lua",
        old="push_head(back)",
        new="",
        test=WIRE + "test_get.py::test_the_answer_carries_at_most_so_many_bytes_and_leases_no_more",
    ),
    Mutant(
        name="all-or-nothing-puts-some",
        defect="A batch that is all or nothing is put as far as there is room.",
        file=LUA + "put.lua",
        old="if needed > room() then may_begin = false end",
        new="",
        test=WIRE + "test_put_all_or_nothing.py::test_all_or_nothing_puts_nothing_if_there_is_not_room_for_all",
    ),
    # Names, ends, lives.
    Mutant(
        name="replaced-lease-still-good",
        defect="The message that a REPLACE took the place of can still be settled by whoever holds it.",
        file=LUA + "put.lua",
        old="drop_leases(S, { ref }, true)",
        new="",
        test=WIRE + "test_on_duplicate.py::test_the_lease_of_a_replaced_message_goes_stale_and_it_is_worked_on_again",
    ),
    Mutant(
        name="attempt-forgotten",
        defect="A Get that is made again under the same attempt id leases other messages.",
        file=INCLUDE + "attempts.lua",
        old="if not kept then return {} end",
        new="if kept or not kept then return {} end",
        test=WIRE + "test_attempt_id.py::test_the_same_again_gives_the_same_leases",
    ),
    Mutant(
        name="redrive-leaves-the-corpse",
        defect="A message put back from the dead stays among them, too.",
        file=LUA + "redrive.lua",
        old="remove_members(K.dead, refs)",
        new="",
        test=WIRE + "test_redrive.py::test_all_the_dead_join_the_tail_in_the_order_they_died",
    ),
    Mutant(
        name="redrive-loses-the-message",
        defect="A message is taken from the dead and does not join the line.",
        file=LUA + "redrive.lua",
        old="join_tail(S, list)",
        new="",
        test=WIRE + "test_redrive.py::test_all_the_dead_join_the_tail_in_the_order_they_died",
    ),
    Mutant(
        name="dedupe-window-ignored",
        defect="The id of a finished message is forgotten at once, so a repeated Put stores it again.",
        file=INCLUDE + "names.lua",
        old="return S.now < finished_at + policy_of(S, 'dedupe_window_ms')",
        new="return false",
        test=WIRE + "test_put_ids.py::test_an_id_is_free_again_after_the_dedupe_window",
    ),
    Mutant(
        name="drained-while-leased",
        defect="A closed queue is said to be drained while a lease is out that may still come back.",
        file=LUA + "get.lua",
        old="and leased == 0 ",
        new="",
        test=EXACT + "test_a_closed_queue_with_a_lease_out_is_not_drained",
    ),
    Mutant(
        name="delete-leaves-a-key",
        defect="Delete forgets one of the keys.",
        file=INCLUDE + "removal.lua",
        old="for _, name in ipairs(own_names()) do keys[#keys + 1] = K[name] end",
        new="for _, name in ipairs(own_names()) do if name ~= 'corpse' then keys[#keys + 1] = K[name] end end",
        test=EXACT + "test_deleting_with_everything_outstanding_leaves_no_key",
    ),
    Mutant(
        name="new-life-not-noticed",
        defect="A queue that a foreign client deleted and made anew is taken for the old one.",
        file=INCLUDE + "queue.lua",
        old=" or redis.call('PTTL', K.bound) < LIFE_MARK_LEAST",
        new="",
        test=EXACT + "test_a_queue_that_was_deleted_and_made_anew_between_two_steps_is_another_queue",
    ),
    Mutant(
        name="update-begins-a-new-life",
        defect="Update drops the life mark, so the next step takes the queue for a new one and forgets its leases.",
        file=LUA + "update.lua",
        old=", 'KEEPTTL'",
        new="",
        test=EXACT + "test_an_update_of_the_bound_begins_no_new_life",
    ),
    # The link to the store, and those who wait.
    Mutant(
        name="lost-replies-sent-again",
        defect="A script whose reply was lost is sent again, as redis-py does by default: a Put happens twice.",
        file="store/link.py",
        old="                call.fail(trouble.lost(was_silent=was_silent, is_write=call.is_write))",
        new="                self._pending.append(call)\n            asyncio.get_running_loop().call_soon(self._flush)",
        test="tests/integration/test_one_lost_reply.py::test_a_put_whose_reply_was_lost_is_not_sent_again_behind_the_callers_back",
    ),
    Mutant(
        name="another-calls-reply-believed",
        defect="The echo of a reply is not looked at, so a reply that slipped is given to the wrong caller.",
        file="store/link.py",
        old=" or reply[0] != call.echo",
        new="",
        test="tests/faults/test_replies_lost.py::test_an_answer_that_is_another_calls_is_not_believed",
    ),
    Mutant(
        name="forgotten-script-not-sent-again",
        defect="NOSCRIPT is handled once for each script, and is an error after SCRIPT FLUSH.",
        file="store/link.py",
        old="        except redis_errors.NoScriptError:\n",
        new="        except redis_errors.NoScriptError as forgotten:\n"
        "            if call.script.name in globals().setdefault('_SENT', set()):\n"
        "                call.fail(trouble.refused(forgotten))\n"
        "                return True, True\n"
        "            globals()['_SENT'].add(call.script.name)\n",
        test="tests/faults/test_store_refuses.py::test_nobody_notices_that_the_store_forgot_its_scripts",
    ),
    Mutant(
        name="hint-not-asked-for-again",
        defect="A line that was woken sleeps on without asking for the next hint.",
        file="engine/lines.py",
        old="is_armed = False  # a hint comes once",
        new="pass",
        test="tests/unit/test_lines.py::test_a_hint_that_comes_right_after_it_was_asked_for_is_asked_for_again",
    ),
    Mutant(
        name="store-away-called-empty",
        defect="A Get whose wait ends while the store is away answers that there was nothing.",
        file="engine/getting.py",
        old="            await self._leave(consumer)",
        new="            self._consumers.give_up(consumer)",
        test="tests/faults/test_waits.py::test_a_wait_that_ends_while_the_store_is_away_is_never_called_empty",
    ),
    # The consumer line.
    Mutant(
        name="newcomer-overtakes",
        defect="Whoever asks first is served first, whoever stands in line.",
        file=LUA + "get.lua",
        old="if ahead >= units then wait = 'line' end",
        new="ahead = 0",
        test=WIRE + "test_stand.py::test_a_newcomer_takes_nothing_that_one_in_line_could_have",
    ),
    Mutant(
        name="turns-without-end",
        defect="A holder that keeps standing goes on before all others for ever.",
        file=INCLUDE + "kept.lua",
        old="(most == 0 or had < most)",
        new="true",
        test=WIRE + "test_stand.py::test_turns_bound_how_often_a_holder_goes_on",
    ),
    Mutant(
        name="stream-keeps-its-leases",
        defect="What a stream has leased stays leased when it ends.",
        file="engine/consumers.py",
        old="self.give_up(consumer, [delivery.lease for delivery in given.result().deliveries], has_left=has_left)",
        new="self.give_up(consumer, has_left=has_left)",
        test=WIRE + "test_stand.py::test_the_end_of_a_stream_gives_its_leases_back_at_no_attempts_cost",
    ),
    Mutant(
        name="poller-overtaken",
        defect="What a poller's turn would bring is not kept for it.",
        file=INCLUDE + "consumers.lua",
        old=">= S.now and PRESENT or ABSENT",
        new=">= S.now and ABSENT or ABSENT",
        test=WIRE + "test_poll.py::test_a_free_slot_waits_for_the_poller_whose_turn_it_is",
    ),
    Mutant(
        name="strikes-not-counted",
        defect="Polls too soon never cost the place.",
        file=INCLUDE + "stands.lua",
        old="strikes = strikes + 1",
        new="strikes = 0",
        test=WIRE + "test_poll.py::test_too_soon_is_a_strike_and_the_third_loses_the_place",
    ),
    Mutant(
        name="strikes-never-forgiven",
        defect="A poll in time forgives no strike.",
        file=INCLUDE + "stands.lua",
        old="if early <= 0 then strikes = math.max(0, strikes - 1) end",
        new="",
        test=WIRE + "test_poll.py::test_a_poll_in_time_forgives_a_strike",
    ),
    # Who leaves the consumer line, and what is given up then.
    Mutant(
        name="left-standing-by-a-lost-answer",
        defect="A Get whose answer from the store was lost leaves a waiter in line that nobody stands for.",
        file="engine/consumers.py",
        old="        except OutcomeUnknown:\n            self.give_up(consumer)\n            self.leave(consumer)\n",
        new="        except OutcomeUnknown:\n",
        test=LOST + "test_a_get_whose_answer_was_lost_is_not_left_standing",
    ),
    Mutant(
        name="owned-leases-of-the-gone-kept",
        defect="What a stream was granted by an answer that was lost stays leased until it lapses.",
        file=INCLUDE + "stands.lua",
        old="release_owned(S, function(owner) return owner == waiter end)",
        new="redis.call('HDEL', K.held, waiter)",
        test=LOST + "test_what_a_stream_was_granted_by_an_answer_that_was_lost_is_given_back",
    ),
    Mutant(
        name="place-to-the-end-when-its-number-is-not-known",
        defect="A place whose number the process was never told is not found again.",
        file="store/lua/keep_place.lua",
        old="  number = redis.call('ZSCORE', K.consumers, waiter) or redis.call('ZSCORE', K.consumers, place)\n",
        new="  number = number_behind_all(S)\n",
        test=LOST + "test_a_stream_that_comes_back_when_the_answer_is_lost_may_come_back_once_more",
    ),
    Mutant(
        name="leaving-given-up",
        defect="Who leaves while the store is away for some seconds stays in line.",
        file="engine/leaving.py",
        old="            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)\n",
        new="            return\n",
        test=LOST + "test_who_leaves_while_the_store_is_away_has_left_when_it_is_back",
    ),
    Mutant(
        name="silence-noticed-late",
        defect="A client that vanished without a word keeps what it holds for a minute longer.",
        file="rpc/server.py",
        old='        ("grpc.http2.ping_timeout_ms", keepalive_timeout // _MS),\n',
        new="",
        test=ENDS + "test_a_stream_that_ends_gives_up_place_and_leases_and_the_next_is_served",
    ),
    Mutant(
        name="missing-for-a-moment-is-gone",
        defect="A process that is not heard for a moment loses what its streams hold when another one is found dead.",
        file="store/lua/drop_absent.lua",
        old="for i = 3, #ARGV do S.present[ARGV[i]] = true end\n",
        new="",
        test=ENDS + "test_who_is_cut_off_for_a_moment_keeps_what_it_holds_though_another_service_has_died",
    ),
    Mutant(
        name="no-number-no-place",
        defect="A holder that begins at the end gets its place only when those before it have had their turn.",
        file="engine/consumers.py",
        old="return self.waiter.number or _NO_NUMBER",
        new="return self.waiter.number",
        test=WIRE + "test_stand.py::test_a_holder_whose_turns_are_used_up_has_its_place_at_the_end_at_once",
    ),
    Mutant(
        name="turns-of-the-dead-kept",
        defect="What a killed process's holders had of turns is kept for ever.",
        file="store/lua/drop_absent.lua",
        old="  if is_gone(waiter) then redis.call('HDEL', K.turns, waiter) end\n",
        new="",
        test=ENDS + "test_a_killed_service_leaves_nobody_standing_and_what_its_streams_held_comes_back",
    ),
    # The streams of producers and consumers.
    Mutant(
        name="credit-exceeded-by-one-message",
        defect="A message larger than what is left of the bytes is leased all the same.",
        file=LUA + "get.lua",
        old="(MUST_FIT or #taken > 0 or #tickets > 0)",
        new="(#taken > 0 or #tickets > 0)",
        test=WIRE + "test_consume.py::test_bytes_are_a_credit_too_and_never_exceeded",
    ),
    Mutant(
        name="too-large-stands-in-line",
        defect="A stream whose next message is too large for what is left of its credit holds up those behind it.",
        file=LUA + "get.lua",
        old=" or wait == 'large' then",
        new=" then",
        test=WIRE + "test_consume.py::test_a_message_too_large_for_what_is_left_holds_up_nobody_else",
    ),
    Mutant(
        name="credit-taken-back-too-late",
        defect="A stream that waits goes on by the credit that it had when it began to wait.",
        file="engine/consuming/consuming.py",
        old="                await self._ask_for_less()",
        new="                pass",
        test=WIRE + "test_consume.py::test_credit_that_is_taken_back_while_the_stream_waits_gives_up_its_place",
    ),
    Mutant(
        name="answer-of-the-last-step-forgotten",
        defect="What the store gives in the very step in which the caller goes stays leased.",
        file="engine/consuming/consuming.py",
        old="[*leases, *late]",
        new="leases",
        test=WIRE + "test_consume_ends.py::test_a_caller_cancelled_at_any_moment_leaves_nothing_leased",
    ),
    Mutant(
        name="lapsed-lease-holds-credit",
        defect="A lease that lapsed counts for ever.",
        file="engine/consuming/consuming.py",
        old="            self._held.lapse(self._loop.time())\n",
        new="",
        test=WIRE + "test_consume.py::test_a_lease_that_lapses_gives_its_credit_back",
    ),
    Mutant(
        name="settles-dropped-at-half-close",
        defect="What was asked for before the half-close is not done.",
        file="engine/consuming/inbox.py",
        old="        if not self._undone:\n            return None",
        new="        if not self._undone or self.is_read:\n            return None",
        test=WIRE + "test_consume.py::test_half_closing_settles_what_was_asked_then_ends_and_gives_back",
    ),
    Mutant(
        name="store-trouble-taken-for-the-queues",
        defect="A batch that met a store in trouble is answered as if only its queue had been wrong.",
        file="rpc/producing.py",
        old="        if error.reason not in _OF_ONE_BATCH:\n            raise",
        new="        if not error.reason:\n            raise",
        test="tests/faults/test_flows.py"
        "::test_a_batch_that_meets_a_store_that_is_down_ends_the_stream_and_no_later_one_passes_it",
    ),
    Mutant(
        name="going-down-cuts-a-batch-off",
        defect="A batch under way when the process goes down is never answered.",
        file="rpc/streams.py",
        old="        elif self._requests is not None:\n            return\n",
        new="",
        test=WIRE + "test_produce.py::test_draining_answers_what_was_accepted_and_ends_with_shutting_down",
    ),
    Mutant(
        name="readiness-at-a-hiccup",
        defect="One answer of the store, or one that is missing, changes whether the process is ready.",
        file="engine/readiness.py",
        old="if self._contrary_count >= (ANSWERS if self._did_answer else FAILURES):",
        new="if self._contrary_count:",
        test="tests/unit/test_readiness.py::test_only_answers_in_a_row_change_the_verdict",
    ),
    Mutant(
        name="liveness-ends-with-service",
        defect="A process that drains is said to be dead, and killed before it has finished.",
        file="rpc/health.py",
        old="is_serving = not self._is_ended",
        new="is_serving = self._is_serving",
        test="tests/unit/rpc/test_server.py::test_liveness_does_not_mind_the_store_nor_a_shut_down",
    ),
    # What those who watch are told.
    Mutant(
        name="read-taken-for-news",
        defect="What was read from before an answer takes its message back in time.",
        file="engine/watching/known.py",
        old="if watch.glance is glance or watch.glance is None or watch.glance.numbers.logged < number:",
        new="if True:",
        test="tests/unit/watching/test_known.py"
        "::test_a_read_from_before_an_answer_does_not_take_its_message_back_in_time",
    ),
    Mutant(
        name="returned-not-counted",
        defect="A position does not count the messages that came back ahead.",
        file="engine/watching/line.py",
        old="return len(self._returned) + ticket - numbers.head - before",
        new="return ticket - numbers.head - before",
        test="tests/truth/test_truth.py::test_every_position_sent_was_the_rank_at_the_instant_it_names",
    ),
    Mutant(
        name="unattended-left",
        defect="Who is attended waits on when nobody attends any more.",
        file="engine/watching/watching.py",
        old="if order.is_attended and (left := watcher.unfinished_ids):",
        new="if not order.queue and (left := watcher.unfinished_ids):",
        test=WIRE + "test_watch_position_ends.py::test_who_is_attended_is_withdrawn_when_the_client_is_killed",
    ),
    Mutant(
        name="blocked-told-the-newest",
        defect="Of a producer's blocked Puts the one is told that has waited least.",
        file=LUA + "blocked.lua",
        old="number < first[producer].number",
        new="number > first[producer].number",
        test=WIRE + "test_blocked.py::test_a_put_that_comes_later_is_seen_and_of_two_the_one_that_has_waited_longest",
    ),
    Mutant(
        name="blocked-name-stays",
        defect="A Put that waits no more is still known by its producer's name.",
        file=INCLUDE + "queue.lua",
        old="== 1 then redis.call('HDEL', K.blocked, waiter) end",
        new="== 2 then redis.call('HDEL', K.blocked, waiter) end",
        test=WIRE + "test_blocked.py::test_a_put_without_a_name_counts_and_leaves_nothing_to_find_it_by",
    ),
    Mutant(
        name="blocked-dead-stay",
        defect="The blocked Puts of a process that is gone count until they come first.",
        file=LUA + "drop_absent.lua",
        old="then leave_producers(waiter) end",
        new="then process_of(waiter) end",
        test=WIRE + "test_blocked.py::test_those_behind_a_killed_process_move_up",
    ),
    Mutant(
        name="blocked-not-restored",
        defect="A process that was not heard leaves its blocked Puts out of the line.",
        file="engine/engine.py",
        old="self._putting.restore()",
        new="pass",
        test=WIRE + "test_blocked.py::test_a_process_that_was_not_heard_takes_its_places_anew",
    ),
    Mutant(
        name="moved-back-not-said",
        defect="Nobody is told that messages came back ahead.",
        file="engine/watching/known.py",
        old="is_moved_back=0 < watch.told_position < watch.position,",
        new="is_moved_back=False,",
        test=WIRE + "test_watch_position.py"
        "::test_a_message_given_back_waits_again_and_those_behind_are_told_that_they_moved_back",
    ),
)
