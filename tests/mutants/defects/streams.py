"""Defects of the streams of producers and consumers, and of what those who watch are told."""

from __future__ import annotations

from mutants.mutant import INCLUDE, LUA, WIRE, Mutant

BARE = "tests/unit/rpc/test_bare_messages.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="alike-by-their-first",
        defect="Messages of a batch are taken for as long as its first.",
        file="rpc/bare_messages.py",
        old="        count -= len(column.lstrip(column[:1]))",
        new="        count -= 0",
        test=BARE + "test_any_other_request_is_left_to_the_schema",
    ),
    Mutant(
        name="others-behind-those-alike",
        defect="Messages that stand behind many of one size are not put.",
        file="rpc/bare_messages.py",
        old="    if rest.messages:\n        return None\n",
        new="",
        test=BARE + "test_any_other_request_is_left_to_the_schema",
    ),
    Mutant(
        name="context-into-a-copy",
        defect="The context of a call is written into messages that are thrown away.",
        file="rpc/tracing/calls.py",
        old="            batch = batch.whole()\n",
        new="            pass\n",
        test="tests/tracing/test_context.py::test_calls_context_is_in_all_of_a_batch_of_payloads_alike_in_size",
    ),
    # The streams of producers and consumers.
    Mutant(
        name="credit-exceeded-by-one-message",
        defect="A message larger than what is left of the bytes is leased all the same.",
        file=INCLUDE + "leasing.lua",
        old="(L.must_fit or #tickets > 0 or #passed_tickets > 0)",
        new="(#tickets > 0 or #passed_tickets > 0)",
        test=WIRE + "test_consume_credit.py::test_bytes_are_a_credit_too_and_never_exceeded",
    ),
    Mutant(
        name="credit-exceeded-by-one-plain-message",
        defect="A message of a plain line larger than what is left of the bytes is leased all the same.",
        file=INCLUDE + "leasing.lua",
        old="(must_fit or taken > 0)",
        new="taken > 0",
        test=WIRE + "test_consume_credit.py::test_bytes_are_a_credit_too_and_never_exceeded",
    ),
    Mutant(
        name="too-large-stands-in-line",
        defect="A stream whose next message is too large for what is left of its credit holds up those behind it.",
        file=LUA + "get.lua",
        old=" or wait == 'large' then",
        new=" then",
        test=WIRE + "test_consume_credit.py::test_a_message_too_large_for_what_is_left_holds_up_nobody_else",
    ),
    Mutant(
        name="credit-taken-back-too-late",
        defect="A stream that waits goes on by the credit that it had when it began to wait.",
        file="engine/consuming/consuming.py",
        old="                await self._ask_for_less()",
        new="                pass",
        test=WIRE + "test_consume_credit.py::test_credit_that_is_taken_back_while_the_stream_waits_gives_up_its_place",
    ),
    Mutant(
        name="lapsed-lease-holds-credit",
        defect="A lease that lapsed counts for ever.",
        file="engine/consuming/consuming.py",
        old="        self._held.lapse(self._loop.time())\n",
        new="",
        test=WIRE + "test_consume_credit.py::test_a_lease_that_lapses_gives_its_credit_back",
    ),
    Mutant(
        name="settles-dropped-at-half-close",
        defect="What was asked for before the half-close is not done.",
        file="engine/read_ahead.py",
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
        test=WIRE + "test_produce_ends.py::test_draining_answers_what_was_accepted_and_ends_with_shutting_down",
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
