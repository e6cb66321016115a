"""Defects of what the store must keep of what it is given, before it is given anything."""

from __future__ import annotations

from mutants.mutant import Mutant

_FIRST_LOOK = "tests/unit/test_first_look.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="on-the-word-of-the-one-before",
        defect="After a failover messages are put on the new primary before it has said what it keeps.",
        file="store/asking.py",
        old="            self._refusal = self._unlooked\n        self._changes += 1\n",
        new="            pass\n        self._changes += 1\n",
        test=_FIRST_LOOK + "test_nothing_is_written_to_another_store_on_the_word_of_the_one_before",
    ),
    Mutant(
        name="a-late-word-counts",
        defect="What the old primary still says of itself is taken for the new one's word.",
        file="store/asking.py",
        old="        if changes == self._changes:\n            self._refusal",
        new="        if True:\n            self._refusal",
        test=_FIRST_LOOK + "test_the_word_of_the_store_before_counts_no_more_though_it_comes_late",
    ),
    Mutant(
        name="on-the-word-of-the-others",
        defect="A cluster's primary that is silent is written to because the others keep what was asked for.",
        file="store/asking.py",
        old='(not self._unlooked or link.refusal == "")',
        new="True",
        test="tests/unit/test_first_look_of_several.py::"
        "test_a_primary_that_was_silent_during_the_look_is_not_written_to_on_the_word_of_the_others",
    ),
    Mutant(
        name="sent-on-whatever-connection",
        defect="Calls that waited for a connection while the store failed over are sent to whatever they are given.",
        file="store/pipelines.py",
        old="if not self._link.may_write():",
        new="if False:",
        test="tests/unit/test_link.py::test_what_would_be_written_is_not_sent_on_a_connection_that_may_not",
    ),
    Mutant(
        name="switch-seen-by-nobody",
        defect="A connection to another primary is used though no Sentinel has told yet that there is one.",
        file="store/sentinels.py",
        old="if before not in (None, self._opened):",
        new="if False:",
        test=_FIRST_LOOK + "test_who_opens_a_connection_to_another_primary_tells_that_it_is_another",
    ),
)
