"""Defects that nobody sees in an answer: what is dearer than it need be, or kept for longer."""

from __future__ import annotations

from mutants.mutant import INCLUDE, LUA, Mutant

PRODUCING = "tests/unit/rpc/test_producing.py::"
RARE = "tests/integration/test_rare_keys.py::"

MUTANTS: tuple[Mutant, ...] = (
    # What most queues do not have is asked for once, at a step's beginning.
    Mutant(
        name="rare-keys-asked-for-one-by-one",
        defect="Each step asks for every key by itself that hardly any queue has.",
        file=INCLUDE + "queue.lua",
        old="S.extras > 0 and redis.call('EXISTS', key)",
        new="redis.call('EXISTS', key)",
        test=RARE + "test_a_step_asks_for_nothing_that_a_plain_queue_does_not_have",
    ),
    Mutant(
        name="delayed-not-told",
        defect="Nobody learns when the first message that is put for later is due.",
        file=INCLUDE + "line.lua",
        old="  S.extras = 1\n  redis.call('ZADD', K.delayed",
        new="  redis.call('ZADD', K.delayed",
        test=RARE + "test_what_is_put_for_later_is_told_to_be_due_by_the_step_that_puts_it",
    ),
    Mutant(
        name="kept-place-not-told",
        defect="Nobody learns when the first place that is kept lapses.",
        file=LUA + "keep_place.lua",
        old="  S.extras = 1\n",
        new="",
        test=RARE + "test_a_place_is_told_to_lapse_by_the_step_that_keeps_it",
    ),
    Mutant(
        name="blocked-not-called",
        defect="The first Put that comes back to the producer line is not told that there is room.",
        file=INCLUDE + "queue.lua",
        old="producer)\n  S.extras = 1\n",
        new="producer)\n",
        test=RARE + "test_a_put_that_comes_back_to_a_queue_with_room_is_called_by_the_step_that_lets_it_stand",
    ),
    Mutant(
        name="line-thought-empty",
        defect="Who comes to stand in line by finding only what has expired is told that nobody stands there.",
        file=LUA + "get.lua",
        old="  S.is_line_empty = false\n",
        new="",
        test=RARE + "test_who_finds_nothing_but_what_has_expired_stands_in_a_line_of_one",
    ),
    Mutant(
        name="drained-before-the-last-ack",
        defect="A closed queue is told to be drained while its last message is leased.",
        file=LUA + "get.lua",
        old="(limit > 0 or S.closed) and",
        new="limit > 0 and",
        test=RARE + "test_a_closed_queue_is_drained_when_its_last_lease_is_settled_and_not_before",
    ),
    Mutant(
        name="holder-taken-for-an-id",
        defect="A lease of a stream is settled without its stream's being told.",
        file=INCLUDE + "settle.lua",
        old="return not has_ids, has_ids",
        new="return has_ids, not has_ids",
        test=RARE + "test_an_ack_ends_what_is_known_of_id_and_stream",
    ),
    # What is kept for longer, sent more often, or made anew.
    Mutant(
        name="alarms-kept",
        defect="Each change of when something is due, of a queue or for who watches, is kept until it would have been.",
        file="engine/watching/alarms.py",
        old=" + _SLACK:",
        new=" + 10**9:",
        test="tests/unit/watching/test_alarms.py::test_setting_an_alarm_again_and_again_keeps_no_heap_of_old_ones",
    ),
    Mutant(
        name="deleted-queues-kept",
        defect="A queue that was deleted is remembered until something of it would have been due.",
        file="engine/sweeper.py",
        old="names if missing is not None else {*names, *self._due}",
        new="names",
        test="tests/unit/test_sweeper.py::test_a_queue_that_is_no_more_is_forgotten_with_the_next_list",
    ),
    Mutant(
        name="woken-all-at-once",
        defect="After a reconnect all who wait or watch are woken in one turn of the loop.",
        file="engine/waking.py",
        old="                await asyncio.sleep(0)\n",
        new="",
        test="tests/unit/test_waking.py::test_all_are_woken_and_few_in_one_turn",
    ),
    Mutant(
        name="visits-all-at-once",
        defect="Queues that are due together are given a task each in one turn of the loop.",
        file="engine/sweeper.py",
        old=", most=_VISITS_AT_ONCE - len(self._visiting)",
        new="",
        test="tests/unit/test_sweeper.py::test_queues_that_are_due_together_are_visited_a_few_at_a_time_and_each_once",
    ),
    Mutant(
        name="leases-of-all-turns-kept",
        defect="A traced stream that keeps standing remembers each lease that it ever had.",
        file="rpc/tracing/streams.py",
        old="leases = {message.lease",
        new="leases |= {message.lease",
        test="tests/unit/rpc/test_tracing_streams.py::"
        "test_a_stream_that_keeps_standing_remembers_the_leases_of_its_turn",
    ),
    Mutant(
        name="answers-leave-one-by-one",
        defect="Each answer on a Produce stream is sent by itself, with a system call for each.",
        file="rpc/producing.py",
        old="answers.peek() is None",
        new="True",
        test=PRODUCING + "test_answers_that_are_there_at_one_time_leave_together_and_none_is_held_back",
    ),
    Mutant(
        name="last-answer-held-back",
        defect="The last answer on a Produce stream waits for another that does not come.",
        file="rpc/producing.py",
        old="answers.peek() is None",
        new="False",
        test=PRODUCING + "test_answers_that_are_there_at_one_time_leave_together_and_none_is_held_back",
    ),
    Mutant(
        name="freed-memory-given-back",
        defect="The service gets the pages of each large request anew.",
        file="app.py",
        old="    keep_freed_memory()\n",
        new="",
        test="tests/integration/test_allocator.py"
        "::test_a_service_keeps_what_was_freed_unless_its_environment_says_otherwise",
    ),
)
