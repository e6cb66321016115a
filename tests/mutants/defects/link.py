"""Defects of the link to the store: its replies and connections, what failed calls leave, and its clock."""

from __future__ import annotations

from mutants.mutant import INCLUDE, Mutant

FAILED = "tests/integration/test_failed_calls.py::test_nothing_is_left_of_"
BACK = "tests/integration/test_clock_back.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="lost-replies-sent-again",
        defect="A script whose reply was lost is sent again, as redis-py does by default: a Put happens twice.",
        file="store/pipelines.py",
        old="                call.fail(trouble.lost(was_silent=was_silent, is_write=call.is_write))",
        new="                self._link._pending.append(call)\n"
        "            asyncio.get_running_loop().call_soon(self._link._flush)",
        test="tests/integration/test_one_lost_reply.py::test_a_put_whose_reply_was_lost_is_not_sent_again_behind_the_callers_back",
    ),
    Mutant(
        name="another-calls-reply-believed",
        defect="The echo of a reply is not looked at, so a reply that slipped is given to the wrong caller.",
        file="store/pipelines.py",
        old=" or reply[0] != call.echo",
        new="",
        test="tests/faults/test_replies_lost.py::test_an_answer_that_is_another_calls_is_not_believed",
    ),
    Mutant(
        name="forgotten-script-not-sent-again",
        defect="NOSCRIPT is handled once for each script, and is an error after SCRIPT FLUSH.",
        file="store/pipelines.py",
        old="        if isinstance(reply, redis_errors.NoScriptError):\n",
        new="        if isinstance(reply, redis_errors.NoScriptError):\n"
        "            if call.script.name in globals().setdefault('_SENT', set()):\n"
        "                call.fail(trouble.refused(reply))\n"
        "                return True\n"
        "            globals()['_SENT'].add(call.script.name)\n",
        test="tests/faults/test_store_refuses.py::test_nobody_notices_that_the_store_forgot_its_scripts",
    ),
    Mutant(
        name="stray-reply-kept",
        defect="A connection on which something came that nobody asked for is used on: the next call gets that.",
        file="store/wire.py",
        old='            self._fail(ConnectionError("a reply that nobody asked for"))\n',
        new="",
        test="tests/unit/test_link.py::test_what_nobody_asked_for_ends_the_connection_and_no_other_call",
    ),
    Mutant(
        name="replies-waited-for-in-vain",
        defect="A store that never answers keeps a connection, and those who are on it, for ever.",
        file="store/wire.py",
        old="            self._fail(TimeoutError())",
        new="            self._wait()",
        test="tests/unit/test_link.py::test_a_long_call_that_the_store_does_not_answer_holds_up_no_other_for_good",
    ),
    Mutant(
        name="given-up-and-kept",
        defect="What nobody waits for any more is kept for as long as the store is away.",
        file="store/link.py",
        old="        del self._pending[: sum(1 for _ in late)]\n",
        new="        del self._pending[:0], late\n",
        test="tests/unit/test_link.py::test_of_calls_that_were_given_up_nothing_is_kept_while_the_store_is_silent",
    ),
    Mutant(
        name="waiting-sent-one-by-one",
        defect="Calls that wait for a connection go one by one, so a slow store is asked for less than comes.",
        file="store/link.py",
        old="        while self._pending and self._places:\n",
        new="        while self._pending:\n",
        test="tests/unit/test_link.py::test_calls_behind_as_many_as_there_are_connections_go_together_when_one_is_free",
    ),
    Mutant(
        name="dropped-connection-kept",
        defect="A connection that was busy when all were dropped is used on, whoever is at its other end.",
        file="store/link.py",
        old="        if wire.is_fit and wire.generation == self._generation:",
        new="        if wire.is_fit:",
        test="tests/unit/test_link.py::test_connections_that_were_dropped_are_used_no_more",
    ),
    # What a call that failed leaves behind.
    Mutant(
        name="failed-calls-kept",
        defect="What a failed call has used is kept until the garbage collector comes to it.",
        file="rpc/incidents.py",
        old="    forget_way(error)\n",
        new="",
        test=FAILED + "calls_that_failed_at_a_silent_store",
    ),
    Mutant(
        name="failed-steps-kept",
        defect="The same of what this process asks the store for itself.",
        file="store/link.py",
        old="            del call  #",
        new="            #",
        test="tests/unit/test_link.py::test_the_error_of_a_call_is_free_as_soon_as_it_was_dealt_with",
    ),
    Mutant(
        name="ended-streams-kept",
        defect="The same of what is read ahead of a stream.",
        file="engine/read_ahead.py",
        old="            self._reading = None  #",
        new="            #",
        test=FAILED + "calls_that_failed_at_a_silent_store",
    ),
    # The clock of the store, which may go forward or back.
    Mutant(
        name="due-by-an-old-clock",
        defect="When the clock has gone forward what is due by now waits for the next list.",
        file="store/asking.py",
        old="            self._hints.on_reconnect()\n",
        new="",
        test="tests/integration/test_clock_forward.py::test_what_is_due_by_the_new_time_does_not_wait_for_the_old",
    ),
    Mutant(
        name="slow-answers-taken-for-the-clock",
        defect="An answer that comes late, and then one that comes soon, are taken for a clock that has gone forward.",
        file="store/clocks.py",
        old="self._most_ms = told_us / 1000 - asked_at * 1000",
        new="self._most_ms = self.ahead_ms",
        test="tests/unit/test_clocks.py::test_slow_answers_are_not_taken_for_it",
    ),
    Mutant(
        name="deletion-begun-by-an-old-clock",
        defect="When the clock has gone back a foreign deletion that was left half done is waited for as much longer.",
        file=INCLUDE + "removal.lua",
        old="if not begun or tonumber(begun) > NOW then",
        new="if not begun then",
        test=BACK + "test_a_deletion_that_a_foreign_client_left_half_done_is_waited_for_no_longer",
    ),
    Mutant(
        name="polls-too-soon-by-an-old-clock",
        defect="When the clock has gone back polls are too soon, and a place is waited for, for as much longer.",
        file=INCLUDE + "consumers.lua",
        old="    if min_at - S.now > longest then\n      min_at, max_at",
        new="    if false then\n      min_at, max_at",
        test=BACK + "test_a_poll_in_time_is_not_too_soon",
    ),
    Mutant(
        name="place-kept-by-an-old-clock",
        defect="When the clock has gone back a place is taken for due, but is told to lapse as late as before.",
        file=INCLUDE + "consumers.lua",
        old="      redis.call('ZADD', K.place_at, max_at + 1, place)\n",
        new="",
        test=BACK + "test_a_poller_that_does_not_come_again_loses_its_place",
    ),
    Mutant(
        name="rarest-polls-taken-for-an-old-clock",
        defect="A poll_min that is longer than the window behind it is taken for a clock that went back.",
        file=INCLUDE + "consumers.lua",
        old="    if 2 * policy_of(S, 'poll_max_ms') > LONGEST_POLL_MS then longest = LONGEST_POLL_MS - longest end\n",
        new="",
        test=BACK + "test_a_poll_in_time_is_not_too_soon",
    ),
    Mutant(
        name="turn-kept-by-an-old-clock",
        defect="When the clock has gone back a consumer that lets its turn pass is waited for as much longer.",
        file=INCLUDE + "consumers.lua",
        old="    if S.turn_at > S.now then",
        new="    if false then",
        test=BACK + "test_a_consumer_that_lets_its_turn_pass_is_passed_over",
    ),
    Mutant(
        name="offer-kept-by-an-old-clock",
        defect="The same of a producer.",
        file=INCLUDE + "queue.lua",
        old="    if S.offer_at > S.now then",
        new="    if false then",
        test=BACK + "test_a_producer_that_lets_its_turn_pass_is_passed_over",
    ),
)
