"""Defects of the link to the store, and of those who wait or stand in the consumer line."""

from __future__ import annotations

from mutants.mutant import ENDS, INCLUDE, LOST, LUA, WIRE, Mutant

# Over the wire it is a matter of chance who comes first.
LINE_MODEL = "tests/stateful/test_consumer_line.py::test_the_consumer_line_does_what_the_model_says"
ROUNDS_TEST = "tests/integration/test_lost_hints.py::"

MUTANTS: tuple[Mutant, ...] = (
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
        old="is_armed, may_find = False, True  # a hint comes once",
        new="may_find = True",
        test="tests/unit/test_lines.py::test_a_hint_that_comes_right_after_it_was_asked_for_is_asked_for_again",
    ),
    Mutant(
        name="heard-by-an-empty-line-forgotten",
        defect="What is heard while nobody stands in line is lost on one who tried before it and stands there after.",
        file="engine/lines.py",
        old="            self._is_behind = True",
        new="            pass",
        test="tests/unit/test_lines.py::test_what_was_heard_while_nobody_waited_is_looked_for_by_arming_at_once",
    ),
    Mutant(
        name="lost-hint-never-found",
        defect="Who sleeps is taken for quiet without the store being asked.",
        file="engine/rounds.py",
        old="            if queue not in quiet:",
        new="            if False:",
        test=ROUNDS_TEST + "test_of_many_who_wait_only_the_one_that_may_find_something_looks",
    ),
    Mutant(
        name="group-not-quiet-not-sorted-out",
        defect="One queue with something in it makes all look that were asked about together.",
        file="store/hints.py",
        old="for group in groups if len(group) > 1 and group not in quiet for queue in group]",
        new="for group in groups if False for queue in group]",
        test=ROUNDS_TEST + "test_of_many_who_wait_only_the_one_that_may_find_something_looks",
    ),
    Mutant(
        name="thought-quiet-never-looked-at",
        defect="What a check does not see, as a line that the store has lost, is never mended.",
        file="engine/rounds.py",
        old="            elif sleeper.checks >= _CHECKS_A_LOOK and now - self._looked_at >= _VAIN_LOOK_S:",
        new="            elif False:",
        test=ROUNDS_TEST + "test_what_a_question_does_not_tell_a_rare_look_finds",
    ),
    Mutant(
        name="closed-called-not-worth-a-look",
        defect="Who arms a hint on a queue that was closed meanwhile sleeps on.",
        file="store/keys.py",
        old='absent, present = ("q", "closed"), (',
        new='absent, present = ("q",), (',
        test="tests/integration/test_arming.py::test_arming_says_whether_a_look_may_find_something",
    ),
    Mutant(
        name="more-left-called-none",
        defect="A Get that leaves messages says that nothing is left, so the next in line is not tried.",
        file=LUA + "get.lua",
        old="math.max(0, math.min(S.len, slots - taken))",
        new="0",
        test="tests/integration/test_arming.py::test_a_get_says_how_many_more_could_be_leased",
    ),
    Mutant(
        name="store-away-called-empty",
        defect="A Get whose wait ends while the store is away answers that there was nothing.",
        file="engine/getting.py",
        old="await self._consumers.shielded(consumer, self._consumers.stop_standing(consumer, budget_s=budget.left_s))",
        new="self._consumers.give_up(consumer)",
        test="tests/faults/test_waits.py::test_a_wait_that_ends_while_the_store_is_away_is_never_called_empty",
    ),
    # The consumer line.
    Mutant(
        name="newcomer-overtakes",
        defect="Whoever asks first is served first, whoever stands in line.",
        file=LUA + "get.lua",
        old="if ahead >= units then wait = 'line' end",
        new="ahead = 0",
        test=LINE_MODEL,
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
    Mutant(
        name="get-refused-for-a-role-of-long-ago",
        defect="Who waits behind others is told of a foreign client's role that was free for most of the wait.",
        file="engine/getting.py",
        old="consumer.last.wait is Wait.ROLE:",
        new="False:",
        test="tests/interop/test_roles.py::test_a_role_that_was_given_back_long_ago_is_not_told_as_taken",
    ),
    Mutant(
        name="put-refused-for-a-role-of-long-ago",
        defect="A blocked Put behind others is told of a foreign client's role when the queue is full.",
        file="engine/putting.py",
        old="            if waiter.found_role_taken:\n",
        new="            if False:\n",
        test="tests/interop/test_roles.py::test_a_role_that_was_given_back_long_ago_is_not_told_as_taken",
    ),
    Mutant(
        name="stands-on-by-its-last-look",
        defect="A Put whose caller goes away during its last look stands in line for nobody.",
        file="engine/putting.py",
        old="            look.add_done_callback(lambda _: self._leave(order.queue, waiter))\n",
        new="",
        test="tests/integration/test_last_look.py"
        "::test_who_goes_away_during_it_has_taken_nothing_and_stands_there_no_more",
    ),
)
