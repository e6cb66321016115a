"""Defects of leases, of attempts, and of what time brings."""

from __future__ import annotations

from mutants.mutant import EXACT, INCLUDE, LUA, WIRE, Mutant

MUTANTS: tuple[Mutant, ...] = (
    # Who may settle what.
    Mutant(
        name="nonce-not-compared",
        defect="Any token with the right generation and ticket settles the message, whoever holds it now.",
        file=INCLUDE + "settle.lua",
        old="elseif packed and nonce_of(packed) == nonce then",
        new="elseif packed then",
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
        old="S.at_commit = write_pages",
        new="S.at_commit = nil",
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
        "::test_what_another_process_left_is_done_in_time_by_one_that_was_never_asked_for_the_queue",
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
)
