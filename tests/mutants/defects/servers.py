"""Defects of how a store's servers are found, heard, and counted on."""

from __future__ import annotations

from mutants.mutant import Mutant

_MOVES = "tests/faults/test_name_moves.py::"
_SLOW = "tests/faults/test_store_slow.py::"
_SOME_SERVERS = "tests/unit/test_some_servers.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="a-slow-store-is-not-found",
        defect="A connection to the store, and the first look at what it is, have the time of one answer together.",
        file="store/asking.py",
        old="self._look_s = _ANSWERS * self._timeout_s",
        new="self._look_s = self._timeout_s",
        test=_SLOW + "test_a_slow_store_is_found_and_looked_at",
    ),
    Mutant(
        name="one-answer-after-the-other",
        defect="What the store is, is asked in five questions, each of which waits for the answer to the one before.",
        file="store/facts.py",
        old="*told, pairs = await link.commands(*_INFO, _CONFIG)",
        new="*told, pairs = [(await link.commands(each))[0] for each in (*_INFO, _CONFIG)]",
        test=_SLOW + "test_a_slow_store_is_found_and_looked_at",
    ),
    Mutant(
        name="a-slow-store-is-not-heard",
        defect="Two connections and what is asked on them must be there within the time of two answers.",
        file="store/hint_wire.py",
        old="async with asyncio.timeout(_ANSWERS * self._call_timeout_s):",
        new="async with asyncio.timeout(2 * self._call_timeout_s):",
        test=_SLOW + "test_a_slow_store_is_heard",
    ),
    Mutant(
        name="a-ping-behind-all-questions",
        defect="Where very many ask to hear of changes the ping is late, the connection given up, and all ask anew.",
        file="store/hint_wire.py",
        old="self._questions.appendleft(question)",
        new="self._questions.append(question)",
        test="tests/unit/test_hint_wire.py::test_a_ping_waits_for_what_is_under_way_only",
    ),
    Mutant(
        name="a-slow-cluster-is-not-found",
        defect="A connection made for the map of slots, and the map, must be there within the time of one answer.",
        file="store/cluster.py",
        old="list(fresh.items()), answers=_ANSWERS)",
        new="list(fresh.items()))",
        test=_SLOW + "test_a_slow_cluster_is_found",
    ),
    Mutant(
        name="a-look-for-a-sign-of-life",
        defect="A store that answers is taken for gone where a look at what it is fails.",
        file="store/asking.py",
        old="            self._look()\n        if self._refusal:",
        new="            await self.probe(budget_s=budget_s)\n        if self._refusal:",
        test="tests/unit/test_first_look.py::test_a_sign_of_life_counts_whatever_becomes_of_the_look_beside_it",
    ),
    Mutant(
        name="impatient-readiness",
        defect="A process is not ready while its store takes longer for an answer than a second, which is set.",
        file="engine/readiness.py",
        old="ask(budget_s=STORE_BUDGET_S)",
        new="ask(budget_s=STORE_BUDGET_S / 2)",
        test="tests/unit/test_readiness.py::test_an_answer_may_take_as_long_as_any_setting_lets_it",
    ),
    Mutant(
        name="heard-elsewhere",
        defect="A process whose calls go to another server now still listens to the one before, and counts as gone.",
        file="store/stand_steps.py",
        old="            self._hints.renew()\n",
        new="",
        test=_MOVES + "test_who_listened_to_the_one_before_listens_to_the_other_and_keeps_what_it_holds",
    ),
    Mutant(
        name="a-replica-like-any-other",
        defect="A process that writes nothing stays at a server that has become a replica.",
        file="store/stand_steps.py",
        old="            link.drop_connections()",
        new="            pass",
        test=_MOVES + "test_who_writes_nothing_goes_over_too",
    ),
    Mutant(
        name="a-sentinel-that-resets",
        defect="A Sentinel whose connection was reset while it is asked fails in a way that nobody looks for.",
        file="store/sentinels.py",
        old="        with resets_as_connection_errors():\n            state",
        new="        if True:\n            state",
        test=_SOME_SERVERS + "test_a_sentinel_whose_connection_was_reset_is_one_that_does_not_answer",
    ),
    Mutant(
        name="deaf-to-a-sentinel",
        defect="A Sentinel whose connection was reset as soon as it was there is never listened to again.",
        file="store/sentinels.py",
        old="with resets_as_connection_errors():\n                    await connection.connect()",
        new="if True:\n                    await connection.connect()",
        test=_SOME_SERVERS + "test_a_sentinel_whose_connection_was_reset_at_once_is_listened_to_again",
    ),
    Mutant(
        name="a-place-for-each-defect",
        defect="A connection that fails in a way that nobody looks for keeps its place among those to the store.",
        file="store/link.py",
        old="except BaseException:  # a defect",
        new="except asyncio.CancelledError:  # a defect",
        test="tests/unit/test_link.py::test_a_connection_that_fails_in_a_way_of_its_own_costs_no_place",
    ),
)
