"""Defects of what the store must keep of what it is given, before it is given anything."""

from __future__ import annotations

from mutants.mutant import Mutant

_FIRST_LOOK = "tests/unit/test_first_look.py::"
_LINK = "tests/unit/test_link.py::"
_SOME_SERVERS = "tests/unit/test_some_servers.py::"

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
        name="silent-about-what-it-lacks",
        defect="The log does not tell what the store was found to lack.",
        file="store/asking.py",
        old="        self._tell_warnings()\n",
        new="",
        test="tests/unit/test_store_warnings.py::test_each_warning_is_told_when_it_comes_up",
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
        test=_LINK + "test_what_would_be_written_is_not_sent_on_a_connection_that_may_not",
    ),
    Mutant(
        name="restart-seen-by-nobody",
        defect="A server that comes back at its address with other settings is written to on what it said before.",
        file="store/link.py",
        old="self._run, self.refusal = run, None",
        new="self._run = run",
        test=_LINK + "test_what_a_server_has_said_counts_on_no_connection_to_another_one",
    ),
    Mutant(
        name="connections-to-both",
        defect="What another server has said of itself counts on connections that still lead to the one before.",
        file="store/link.py",
        old="self._run, self.refusal = run, None\n        self.drop_connections()",
        new="self._run, self.refusal = run, None",
        test=_LINK + "test_what_a_server_has_said_counts_on_no_connection_to_another_one",
    ),
    Mutant(
        name="late-word-of-a-process",
        defect="What a server still said before it went is taken for the word of the one that is there now.",
        file="store/link.py",
        old='if self._run in ("", run):',
        new="if True:",
        test=_LINK + "test_what_a_server_has_said_counts_on_no_connection_to_another_one",
    ),
    Mutant(
        name="switch-seen-by-nobody",
        defect="A connection to another primary is used though no Sentinel has told yet that there is one.",
        file="store/sentinels.py",
        old="if before not in (None, self._opened):",
        new="if False:",
        test=_FIRST_LOOK + "test_who_opens_a_connection_to_another_primary_tells_that_it_is_another",
    ),
    Mutant(
        name="gone-for-one-sentinel",
        defect="One Sentinel that alone takes the primary for gone is believed, if it answers first.",
        file="store/sentinels.py",
        old="(one.epoch, one.is_sound)",
        new="one.epoch",
        test=_SOME_SERVERS + "test_one_sentinel_that_alone_takes_the_primary_for_gone_is_not_believed",
    ),
    Mutant(
        name="gone-for-the-nearest-sentinel",
        defect="Sentinels that are slow are not waited for when one near by takes the primary for gone.",
        file="store/sentinels.py",
        old="_OTHERS_S if any(one.is_sound for one in told) else None",
        new="_OTHERS_S if told else None",
        test=_SOME_SERVERS + "test_others_are_waited_for_while_the_primary_is_gone_for_all_who_answered",
    ),
    Mutant(
        name="past-for-ever",
        defect="A cluster that was made anew is taken for one of the past for as long as the process runs.",
        file="store/cluster.py",
        old="if now < self._past_since + _PAST_S:",
        new="if now >= self._past_since:",
        test=_SOME_SERVERS + "test_a_cluster_made_anew_is_mapped_when_nobody_tells_of_the_old_one_any_more",
    ),
    Mutant(
        name="past-counted-through",
        defect="What tells of the past is believed in time though others tell of the present.",
        file="store/cluster.py",
        old="""            self._past_since = None
            return True""",
        new="""            return True""",
        test=_SOME_SERVERS + "test_who_tells_of_the_past_is_not_believed_while_others_tell_of_the_present",
    ),
    Mutant(
        name="all-names-or-none",
        defect="While one server is away, what is due on the others, and what the dead held there, is left.",
        file="store/queue_steps.py",
        old="missing = result",
        new="raise result",
        test=_SOME_SERVERS + "test_names_on_servers_that_answer_are_told_though_one_does_not",
    ),
    Mutant(
        name="a-look-that-counts-as-a-write",
        defect="Where the store keeps too little nobody can look at the dead.",
        file="store/pipelines.py",
        old='"list_dead", "count_dead",',
        new='"count_dead",',
        test="tests/faults/test_durability.py::"
        "test_a_store_that_comes_to_keep_less_is_not_written_to_until_it_keeps_it_again",
    ),
    Mutant(
        name="replicas-that-lag-for-ever",
        defect="A server that writes without any replica is taken for replicated.",
        file="store/durability.py",
        old='if config.get("min-replicas-max-lag") == "0":',
        new="if False:",
        test="tests/unit/test_store_address.py::test_replicated_needs_replicas_that_may_not_lag_for_ever",
    ),
)
