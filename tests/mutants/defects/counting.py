"""Defects of metrics: what is told is not what was done, or is told of things that must not be told of."""

from __future__ import annotations

from mutants.mutant import Mutant

_COUNTED = "tests/integration/test_metrics.py::"
_UNIT = "tests/unit/test_counting.py::"
_TEXT = "tests/unit/test_exposition.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="made-up-names-get-series",
        defect="A Put into a queue that nobody made gets series of its own, under whatever name the caller gave.",
        file="engine/counting/counts.py",
        old="if reason in _OF_A_QUEUE else self.of_known(queue)",
        new="if reason else self.of_known(queue)",
        test=_COUNTED + "test_nothing_of_a_message_or_its_callers_is_told",
    ),
    Mutant(
        name="series-without-bound",
        defect="Every queue has series of its own, however many there are.",
        file="engine/counting/counts.py",
        old="len(self._queues) < self._most_queues and ",
        new="",
        test=_COUNTED + "test_many_queues_make_few_series_and_none_is_left_out_of_the_sums",
    ),
    Mutant(
        name="waiting-for-room-counts-as-refused",
        defect="A stream's batch that waits for room is counted as refused, though it is accepted then.",
        file="engine/putting.py",
        old=" and not (order.comes_again and error.reason in NO_ROOM)",
        new="",
        test=_COUNTED + "test_what_streams_do_counts_like_any_other",
    ),
    Mutant(
        name="no-time-to-wait-taken-for-first-try",
        defect="What a stream is refused at the end of its time, for want of time to wait for room, is not counted.",
        file="engine/putting.py",
        old="not (order.comes_again and error.reason in NO_ROOM)",
        new="(order.wait_ms or error.reason not in NO_ROOM)",
        test=_UNIT + "test_all_that_is_refused_is_counted_but_what_comes_again",
    ),
    Mutant(
        name="same-leases-counted-twice",
        defect="A Get that is repeated with its attempt id counts what it leased a second time.",
        file="engine/counting/counted_store.py",
        old="if step in leased_at:",
        new="if False:",
        test=_UNIT + "test_the_same_leases_asked_for_again_are_counted_once",
    ),
    Mutant(
        name="stale-lease-ends-another",
        defect="A lease that had ended before ends another of its step, whose work is then not counted.",
        file="engine/counting/counted_store.py",
        old="                    if how in _ENDED:\n",
        new="                    if how:\n",
        test=_UNIT + "test_leases_of_a_run_are_counted_as_those_of_any",
    ),
    Mutant(
        name="stale-state-told-without-the-store",
        defect="While the store is away the state of queues is told as it was.",
        file="engine/counting/census.py",
        old="self._seen = Seen(is_reachable=False, queues={})",
        new="self._seen = Seen(is_reachable=False, queues={}) if self._seen is None else self._seen",
        test=_COUNTED + "test_without_the_store_the_process_tells_of_itself_and_that_the_store_is_away",
    ),
    Mutant(
        name="part-of-the-others-told",
        defect="The sum of the other queues rises look by look from the start, and alerts take it for what happens.",
        file="engine/counting/census.py",
        old="        if self._others and self._is_whole:\n",
        new="        if self._others:\n",
        test=_UNIT + "test_a_look_at_very_many_queues_is_bounded_and_comes_round_to_all",
    ),
    Mutant(
        name="away-unnoticed-without-queues",
        defect="A process that knows no queue says of a store that is away that it answers.",
        file="engine/counting/census.py",
        old="        if not (self._counts.own or asked):",
        new="        if False:",
        test=_COUNTED + "test_a_process_that_knows_no_queue_tells_that_the_store_is_away",
    ),
    Mutant(
        name="refusing-called-away",
        defect="A process that knows no queue says of a store that answers, but keeps too little, that it is away.",
        file="engine/counting/census.py",
        old="contextlib.suppress(NotDurable)",
        new="contextlib.suppress()",
        test=_UNIT + "test_a_store_that_keeps_too_little_answers_whether_or_not_there_are_queues",
    ),
    Mutant(
        name="first-defects-unseen",
        defect="The first defects of a method make its series, and so are no increase to an alert.",
        file="telemetry/reading.py",
        old="if number or key[1] == DEFECT}",
        new="if number}",
        test=_COUNTED + "test_defects_are_told_of_every_method_before_there_is_one",
    ),
    Mutant(
        name="label-not-escaped",
        defect="A queue whose name has a quote in it makes the whole text unreadable.",
        file="telemetry/exposition.py",
        old='text.translate(_ESCAPES)}"',
        new='text}"',
        test=_TEXT + "test_the_parsers_read_what_was_written",
    ),
    Mutant(
        name="counters-fall-with-a-worker",
        defect="A worker that takes a dead one's place begins at zero, and the service's counters fall.",
        file="telemetry/sharing.py",
        old="together((self._before, own))",
        new="together((own,))",
        test=_TEXT + "test_who_takes_a_dead_ones_place_goes_on_from_its_counters_and_not_from_its_gauges",
    ),
    Mutant(
        name="ready-while-going",
        defect="/readyz says ready although the process was told to stop.",
        file="oversight.py",
        old="self._is_serving and self._is_ready",
        new="self._is_ready",
        test="tests/integration/test_http.py::"
        "test_from_the_signal_on_it_is_not_ready_and_it_answers_until_calls_have_ended",
    ),
    Mutant(
        name="series-of-all-before",
        defect="A place keeps the series of all queues that any worker in it has ever told of.",
        file="telemetry/sharing.py",
        old="        self._before = only_of(self._before, queues_in(own))\n",
        new="",
        test=_TEXT + "test_a_queue_that_is_gone_has_no_series_in_any_place",
    ),
    Mutant(
        name="other-queues-than-before",
        defect="A worker in a dead one's place chooses other queues, and the counters of those before fall.",
        file="telemetry/metrics.py",
        old="            counts.of(queue)\n",
        new="            pass\n",
        test=_TEXT + "test_who_takes_a_place_has_series_of_the_same_queues_and_no_more",
    ),
    Mutant(
        name="dead-queues-in-idle-workers",
        defect="Queues that are gone keep their places in a worker that is never scraped.",
        file="telemetry/metrics.py",
        old="                    await self._census.forget_gone()\n",
        new="                    pass\n",
        test=_TEXT + "test_of_several_workers_each_looks_for_queues_that_are_gone",
    ),
)
