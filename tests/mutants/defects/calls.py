"""How the server of our own takes calls and ends them."""

from __future__ import annotations

from mutants.mutant import Mutant

CORE = "tests/unit/rpc/test_core.py::"
CALL, SERVER, COMPLETIONS = "rpc/core/call.py", "rpc/core/server.py", "rpc/core/completions.py"

MUTANTS: tuple[Mutant, ...] = (
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
        name="thread-left-behind",
        defect="Each server that has ended leaves a thread behind.",
        file=COMPLETIONS,
        old="            self.queue.shutdown()  #",
        new="            pass  #",
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
)
