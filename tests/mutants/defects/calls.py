"""How calls are taken and ended, by the server of our own and the plain way."""

from __future__ import annotations

from mutants.mutant import LUA, WIRE, Mutant

CORE, PACES = "tests/unit/rpc/test_core.py::", "tests/unit/rpc/test_pacing.py::"
AWAITED = "tests/unit/rpc/test_awaited.py::"
UNIT_CALLS = "tests/unit/rpc/test_calls.py::"
CALL, SERVER, COMPLETIONS = "rpc/core/call.py", "rpc/core/server.py", "rpc/core/completions.py"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="incident-of-no-message",
        defect="A defect that befalls one message is told with all that it says, and is not in the log.",
        file="rpc/conversion.py",
        old="item_status(as_told(outcome.error, method))",
        new="item_status(outcome.error)",
        test=UNIT_CALLS + "test_a_defect_is_an_incident_also_where_it_befell_messages_and_one_for_all_of_them",
    ),
    Mutant(
        name="incident-of-each-message",
        defect="A defect that befalls all messages of a batch is in the log for each of them.",
        file="rpc/incidents.py",
        old='    if "incident" not in known:',
        new="    if True:",
        test=UNIT_CALLS + "test_a_defect_is_an_incident_also_where_it_befell_messages_and_one_for_all_of_them",
    ),
    Mutant(
        name="plainly-unweighed",
        defect="Taken the plain way, requests may have any size, and any number of them may be held at a time.",
        file="rpc/plain.py",
        old="        if service not in _UNGUARDED:",
        new="        if False:",
        test=WIRE + "test_limits.py::test_large_requests_have_a_bound_together_and_one_that_ends_makes_room",
    ),
    Mutant(
        name="errors-beside-the-bytes",
        defect="Peek answers with more than a client's library takes.",
        file=LUA + "peek.lua",
        old=" + #record.error",
        new="",
        test=WIRE + "test_peek.py::test_last_errors_count_for_the_bytes_of_an_answer",
    ),
    Mutant(
        name="caller-who-went-not-noticed",
        defect="A call that waits goes on when its caller has gone.",
        file=SERVER,
        old="            call.watch()\n",
        new="            pass\n",
        test=CORE + "test_a_handler_is_cancelled_when_its_caller_goes",
    ),
    Mutant(
        name="request-lost-with-its-reader",
        defect="A request that comes when reading was given up is lost.",
        file=CALL,
        old="        self._messages.append(event.batch_operations[0].message())\n",
        new="        if self._reader is not None:\n"
        "            self._messages.append(event.batch_operations[0].message())\n",
        test=CORE + "test_a_request_that_nobody_waited_for_is_not_lost",
    ),
    Mutant(
        name="call-kept-by-its-abort",
        defect="A call that was aborted stays in memory until it is looked for.",
        file=CALL,
        old="        self._task = self._abort_error = None",
        new="        self._task = None",
        test=CORE + "test_nothing_of_a_call_is_kept",
    ),
    Mutant(
        name="slow-callers-keep-others-out",
        defect="As long as the requests of some calls do not come no others are accepted.",
        file=SERVER,
        old="        self._completions.at_next_turn(partial(self._ask, path))\n",
        new="",
        test=CORE + "test_a_slow_caller_keeps_nobody_from_being_served",
    ),
    Mutant(
        name="request-awaited-for-ever",
        defect="A call whose request never comes stays until its connection ends.",
        file="rpc/core/awaited.py",
        old="            self._end(call, why)\n",
        new="            pass\n",
        test=AWAITED + "test_a_call_whose_request_does_not_come_in_time_is_ended",
    ),
    Mutant(
        name="any-number-awaited",
        defect="Any number of calls whose requests do not come is held.",
        file="rpc/core/awaited.py",
        old="        while len(self._since) > most:\n",
        new="        while False:\n",
        test=AWAITED + "test_those_that_have_waited_longest_make_room_and_others_are_served",
    ),
    Mutant(
        name="awaited-taken-for-pending",
        defect="Calls whose requests do not come have others refused: they pass for a line of calls.",
        file="rpc/server.py",
        old=" + self._awaited.count)",
        new=")",
        test=AWAITED + "test_they_are_not_taken_for_calls_that_nobody_has_accepted",
    ),
    Mutant(
        name="going-down-waits-for-requests",
        defect="A call whose request does not come holds up going down for the whole grace.",
        file="rpc/core/awaited.py",
        old="        self._most_sweeps = min(self._most_sweeps, ON_ITS_WAY_S / self._between_s)\n",
        new="",
        test=AWAITED + "test_going_down_waits_for_no_request",
    ),
    Mutant(
        name="thread-left-behind",
        defect="Each server that has ended leaves a thread behind.",
        file=COMPLETIONS,
        old="            self.queue.shutdown()  #",
        new="            pass  #",
        test=CORE + "test_threads_end_with_the_last_call",
    ),
    Mutant(
        name="pauses-though-cores-are-free",
        defect="Of many calls each waits for the next look, though nobody waits for a core.",
        file="rpc/core/pacing.py",
        old="self._waiting.share() > _WAITED and is_busy",
        new="is_busy",
        test=PACES + "test_it_pauses_where_many_come_and_cores_are_short",
    ),
    Mutant(
        name="pauses-for-few",
        defect="A few callers, each of whom waits for one answer before the next call, wait for the next look, too.",
        file="rpc/core/pacing.py",
        old="self._waiting.share() > _WAITED and is_busy",
        new="self._waiting.share() > _WAITED",
        test=PACES + "test_it_pauses_where_many_come_and_cores_are_short",
    ),
    Mutant(
        name="woken-while-it-pauses",
        defect="The thread goes on waking an event loop that looks by itself.",
        file=COMPLETIONS,
        old="        elif self._stands_still and not self._is_pausing:\n",
        new="        elif self._stands_still:\n            self._gate.release()\n",
        test=PACES + "test_while_it_pauses_nobody_wakes_it_and_then_somebody_does_again",
    ),
    Mutant(
        name="pauses-at-its-end",
        defect="A server that ends while the event loop pauses leaves its thread behind.",
        file=COMPLETIONS,
        old="if not self._is_closing and self._pauses(self._entered):",
        new="if self._pauses(self._entered):",
        test=CORE + "test_threads_end_with_the_last_call",
    ),
    Mutant(
        name="context-of-nobody",
        defect="Calls are served without the context variables of whoever started the server.",
        file=COMPLETIONS,
        old="self.loop.call_soon_threadsafe(self._turn, context=self._context)",
        new="self.loop.call_soon_threadsafe(self._turn)",
        test=CORE + "test_of_a_call_the_handler_knows_what_came_along",
    ),
    Mutant(
        name="braces-within-braces",
        defect="In a cluster a queue that a foreign client named with further braces makes List and the metrics fail.",
        file="store/keys.py",
        old='        if "{" in name or "}" in name:\n',
        new="        if False:\n",
        test="tests/properties/test_namespaces.py::test_a_key_with_further_braces_is_nobodys_in_a_cluster",
    ),
    Mutant(
        name="holder-not-known-as-it-is-told",
        defect="A dead client whose name is not UTF-8 keeps its role for ever.",
        file="store/queue_steps.py",
        old="        if replies.NOT_TEXT not in name:\n",
        new="        if True:\n",
        test="tests/interop/test_roles.py::test_repair_knows_a_holder_whose_name_is_not_utf8_as_it_is_told",
    ),
)
