"""Defects of calls that go to the store together."""

from __future__ import annotations

from mutants.mutant import LUA, WIRE, Mutant

ASKING = "tests/integration/test_asking_together.py::"
COALESCING = "tests/unit/test_coalescing.py::"
TOGETHER = WIRE + "test_together.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="one-secret-for-all",
        defect="Who leases together with others knows the random bits of their leases.",
        file=LUA + "get.lua",
        old="string.sub(ARGV[6], (i - 1) * RANDOM_SIZE + 1, i * RANDOM_SIZE)",
        new="string.sub(ARGV[6], 1, RANDOM_SIZE)",
        test=TOGETHER + "test_each_get_has_what_it_asked_for_and_settles_its_own",
    ),
    Mutant(
        name="full-for-those-behind",
        defect="Who came behind one that found no room is told that there is none, though it needs none.",
        file="engine/putting.py",
        old="is_full and start > dealt_with",
        new="False",
        test=TOGETHER + "test_an_id_that_is_known_is_known_though_it_came_with_what_found_no_room",
    ),
    Mutant(
        name="past-those-between",
        defect="Those who ask together get what those have a right to who stand between them.",
        file=LUA + "get.lua",
        old="    if line and line[i] ~= asks[i].waiter then break end",
        new="",
        test=ASKING + "test_nobody_is_served_past_one_of_another_process_who_stands_between",
    ),
    Mutant(
        name="served-and-still-there",
        defect="Who was served together with others still stands in line, and nobody behind it is called.",
        file=LUA + "get.lua",
        old="    if number ~= 0 then redis.call('ZREM', K.consumers, waiter) end",
        new="    if number ~= 0 and waiter == WAITER then redis.call('ZREM', K.consumers, waiter) end",
        test=ASKING + "test_those_who_stand_are_served_in_order_and_leave_the_line_at_once",
    ),
    Mutant(
        name="settled-and-sent-away",
        defect="Who settles together with others and finds nothing is sent away at once, and its place stays.",
        file="store/stand_replies.py",
        old="wait = Wait.NOTHING if given else own.wait",
        new="wait = Wait.NOTHING if given or order.ack else own.wait",
        test=TOGETHER + "test_who_settles_and_finds_nothing_waits_on_though_others_with_it_were_served",
    ),
    Mutant(
        name="places-of-the-gone",
        defect="Who goes while it asks together with others leaves its place behind.",
        file="engine/flowing.py",
        old="            self._consumers.give_up(consumer)\n\n    def _leave",
        new="            pass\n\n    def _leave",
        test=TOGETHER + "test_the_places_of_those_who_went_while_they_asked_together_are_given_up",
    ),
    Mutant(
        name="answer-that-just-came",
        defect="What was leased for a caller who goes just when its answer comes stays leased.",
        file="engine/coalescing.py",
        old="            self._hand_over(key, ask, part.answer)",
        new="            pass",
        test=COALESCING + "test_an_answer_that_comes_just_when_its_caller_goes_is_handed_over",
    ),
    Mutant(
        name="lost-error-of-the-gone",
        defect="Who goes while it asks is not seen to when nobody knows whether it was given something.",
        file="engine/coalescing.py",
        old="                    self._failed(key, part.ask, error)\n                else:",
        new="                    pass\n                else:",
        test=COALESCING + "test_an_error_for_one_who_has_gone_is_handed_over",
    ),
    Mutant(
        name="unclaimed-kept",
        defect="What was leased for a caller who went while others were served stays leased.",
        file="engine/coalescing.py",
        old="                    self._unclaimed(key, part.ask, answer)",
        new="                    pass",
        test=COALESCING + "test_an_answer_to_one_who_has_gone_is_handed_over",
    ),
    Mutant(
        name="slots-shared-with-newcomers",
        defect="With slots, who settles and asks for the next may lose its slot to a newcomer in the same step.",
        file="engine/flowing.py",
        old="        if step.limit:",
        new="        if step.limit < 0:",
        test=TOGETHER + "test_with_slots_a_holder_that_settles_keeps_its_own",
    ),
    Mutant(
        name="step-of-the-longest-time",
        defect="Who has little time shares a step that may go on for longer, and cannot be told whether it happened.",
        file="engine/coalescing.py",
        old="        budget_s = min(",
        new="        budget_s = max(",
        test=COALESCING + "test_a_step_has_the_time_of_the_one_in_it_who_has_least",
    ),
    Mutant(
        name="late-drain",
        defect="Who waits on a closed queue hears only after seconds that its last delayed message has gone.",
        file="store/keys.py",
        old='        names += ["leases", "bundle_at", "delayed"]',
        new='        names += ["leases", "bundle_at"]',
        test=WIRE + "test_withdraw.py::test_withdrawing_the_last_message_drains_a_closed_queue",
    ),
    Mutant(
        name="answered-with-those-behind",
        defect="Batches that go together wait for room together: the first learns of it when the last has it.",
        file="rpc/producing.py",
        old="batches[0].order._replace(messages=messages)",
        new="batches[0].order._replace(messages=messages, wait_ms=_WAIT_MS)",
        test=WIRE + "test_produce.py::test_each_batch_is_answered_when_it_is_stored_though_those_behind_it_wait",
    ),
    Mutant(
        name="together-whatever-they-ask",
        defect="Batches of a stream that came together are put as the first of them asks.",
        file="rpc/producing.py",
        old="is_alike = self.order._replace(messages=()) == other.order._replace(messages=())",
        new="is_alike = True",
        test=WIRE + "test_produce.py::test_batches_that_go_together_keep_what_each_asked_for",
    ),
    Mutant(
        name="put-on-and-on-unanswered",
        defect="Batches are put without end for one who takes no answers.",
        file="rpc/producing.py",
        old="most=_MOST_UNSENT",
        new="most=1_000_000",
        test="tests/unit/rpc/test_producing.py"
        "::test_a_step_does_not_wait_until_what_is_put_is_answered_but_a_few_batches_are_the_most",
    ),
    Mutant(
        name="step-behind-a-small-one",
        defect="Few who wait go to the store behind the step on its way, so that nothing gathers.",
        file="engine/coalescing.py",
        old="return waiting.items >= self._most_items or",
        new="return bool(waiting.parts) or",
        test=COALESCING + "test_less_than_a_step_waits_for_the_one_on_its_way",
    ),
    Mutant(
        name="hung-in-a-step-that-never-began",
        defect="Who is in a step behind another waits for ever when that is cancelled before it runs.",
        file="engine/coalescing.py",
        old="            if step.cancelled():",
        new="            if not parts:",
        test=COALESCING + "test_the_end_of_its_tasks_ends_those_in_a_step_behind_another_however_far_that_is",
    ),
)
