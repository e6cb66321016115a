"""Defects of bundles: leases of one step that are kept as one."""

from __future__ import annotations

from mutants.mutant import INCLUDE, WIRE, Mutant

BUNDLES = "tests/integration/test_bundles.py::"
ALIKE = BUNDLES + "test_nobody_can_tell_a_bundle_from_leases_kept_singly"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="bundled-lease-acked-twice",
        defect="A lease in a bundle can be acked again and again while others of it are out.",
        file=INCLUDE + "settle.lua",
        old="if byte and byte % (2 * value) < value then",
        new="if byte then",
        test=ALIKE,
    ),
    Mutant(
        name="untied-with-the-settled",
        defect="What was acked in a bundle is leased again when the bundle is untied.",
        file=INCLUDE + "bundles.lua",
        old="if is_out(bundle, ticket) then act(at, text_of(ticket), packed) end",
        new="act(at, text_of(ticket), packed)",
        test=BUNDLES + "test_a_bundle_is_untied_by_whatever_else_happens_to_one_of_it_and_no_other_is",
    ),
    Mutant(
        name="bundle-of-names",
        defect="Messages with ids are kept in bundles, whose acks do not look for ids.",
        file=INCLUDE + "leasing.lua",
        old="if id ~= '' then is_named = true end",
        new="",
        test=BUNDLES + "test_messages_with_ids_are_no_bundle",
    ),
    Mutant(
        name="frames-told-in-one-piece",
        defect="An element that is a frame among payloads of its size is told as if it were a payload.",
        file=INCLUDE + "leasing.lua",
        old="packed and not string.find(packed, MAGIC, 1, true)",
        new="packed",
        test=WIRE + "test_get.py::test_messages_of_any_size_come_whole_and_in_order",
    ),
    Mutant(
        name="sizes-told-by-the-last",
        defect="Elements are told in one piece though not all have as many bytes.",
        file=INCLUDE + "leasing.lua",
        old="size = taken == 0 and own or -1",
        new="size = own",
        test=WIRE + "test_get.py::test_messages_of_any_size_come_whole_and_in_order",
    ),
    Mutant(
        name="times-of-the-first",
        defect="All messages of a step were put when the first one was.",
        file=INCLUDE + "leasing.lua",
        old="local count = math.min(to, last + 1) - ticket",
        new="local count = last + 1 - ticket",
        test=ALIKE,
    ),
    Mutant(
        name="bundles-have-no-slots",
        defect="Leases in bundles take no slots of the limit.",
        file=INCLUDE + "queue.lua",
        old="return redis.call('ZCARD', K.leases) + S.n_bundled end",
        new="return redis.call('ZCARD', K.leases) end",
        test=BUNDLES + "test_a_limit_counts_what_is_in_bundles",
    ),
    Mutant(
        name="bundle-lapses-late",
        defect="A bundle lapses a millisecond behind its deadline.",
        file=INCLUDE + "due.lua",
        old="redis.call('ZREVRANGEBYSCORE', K.bundle_at, S.now, '-inf', 'LIMIT', 0, 1)",
        new="redis.call('ZREVRANGEBYSCORE', K.bundle_at, S.now - 1, '-inf', 'LIMIT', 0, 1)",
        test=BUNDLES + "test_a_bundle_lapses_at_its_deadline_and_not_a_millisecond_before",
    ),
    Mutant(
        name="bundle-lapses-unannounced",
        defect="Nobody is told when a bundle lapses, so its messages come back only when somebody touches the queue.",
        file=INCLUDE + "commit.lua",
        old="  if S.n_bundled > 0 then first_of(K.bundle_at, lapse_at) end\n",
        new="",
        test=WIRE + "test_lapse.py::test_leases_of_one_get_lapse_though_nobody_touches_the_queue",
    ),
    Mutant(
        name="bundle-is-no-ones",
        defect="A made-up token for a message in a bundle is told that the message is gone.",
        file=INCLUDE + "settle.lua",
        old="return bundle_with(S, name) and T.STALE or T.GONE",
        new="return T.GONE",
        test=BUNDLES + "test_a_made_up_lease_of_a_message_in_a_bundle_is_stale",
    ),
    Mutant(
        name="bundle-stays-with-the-dead",
        defect="What a stream holds in a bundle is not given back when its process is gone.",
        file=INCLUDE + "stands.lua",
        old="  for _, ticket in ipairs(tickets) do untie_with(S, ticket) end\n",
        new="",
        test="tests/integration/test_bundles.py::test_what_a_stream_of_a_dead_process_had_in_a_bundle_is_given_back",
    ),
    Mutant(
        name="bundle-stays-for-few",
        defect="What was acked of a large bundle takes memory until the last of it is settled.",
        file=INCLUDE + "settle.lua",
        old="if left > 0 then untie_if_sparse(S, bundle) end",
        new="",
        test=BUNDLES + "test_a_bundle_of_many_bytes_does_not_stay_for_the_sake_of_few_leases",
    ),
    Mutant(
        name="turns-go-on-as-they-were-named",
        defect="Of two holders whose turns end in one call the first to be named goes on first.",
        file=INCLUDE + "kept.lua",
        old="  table.sort(holders, function(a, b) return turn_at[a] < turn_at[b] end)\n",
        new="",
        test=BUNDLES + "test_of_two_turns_that_end_together_the_first_to_end_goes_on_first",
    ),
    Mutant(
        name="late-drain-of-a-bundle",
        defect="Who waits on a closed queue hears only after seconds that the last of a bundle was acked.",
        file="store/keys.py",
        old='        names += ["leases", "bundle_at", "delayed"]',
        new='        names += ["leases", "delayed"]',
        test=WIRE + "test_close.py::test_who_waits_hears_at_once_that_the_last_of_several_leases_ended",
    ),
)
