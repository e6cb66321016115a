"""Defects that nobody sees in an answer: what is dearer than it need be."""

from __future__ import annotations

from mutants.mutant import INCLUDE, LUA, Mutant

FLAT = "tests/integration/test_flat_steps.py::test_no_step_grows_with_the_queue"
MANY_END = "tests/integration/test_many_leases_end.py::"
RELEASING = "tests/unit/test_releasing.py::"
THREADS = (
    "tests/integration/test_grpc_threads.py"
    "::test_connections_are_read_by_one_thread_unless_the_environment_says_otherwise"
)

BLOCKS = "tests/integration/test_blocks.py::"
RARE = "tests/integration/test_rare_keys.py::"
PLACES_IN_BLOCKS = BLOCKS + "test_places_are_those_of_the_line_whatever_happens"

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
    # Messages that come back while thousands that came back before stand before their place.
    Mutant(
        name="all-moved-for-one",
        defect="Each message that comes back moves all that came back before it, however many these are.",
        file=INCLUDE + "blocks.lua",
        old="if before > MOST_MOVED and",
        new="if false and",
        test=BLOCKS + "test_giving_back_takes_no_longer_the_more_came_back_before",
    ),
    Mutant(
        name="block-for-each",
        defect="Each that comes back behind thousands begins a block of its own: they come out the wrong way round.",
        file=INCLUDE + "blocks.lua",
        old="math.max(0, math.ceil(-lowest / BLOCK))",
        new="0",
        test=BLOCKS + "test_those_that_come_back_behind_thousands_begin_a_block_at_the_head",
    ),
    Mutant(
        name="block-not-told",
        defect="Who watches takes a message at the head for one that stands behind thousands.",
        file=INCLUDE + "line.lua",
        old="tell(S, 'B', ticket, block > 0 and order or nil)",
        new="tell(S, 'B', ticket)",
        test=BLOCKS + "test_who_watches_learns_of_blocks_as_they_come",
    ),
    Mutant(
        name="hole-in-another-block",
        defect="What was withdrawn from one block is taken for one of another.",
        file=INCLUDE + "places.lua",
        old="number > S.head and ticket or order_of(S, ticket)",
        new="ticket",
        test=PLACES_IN_BLOCKS,
    ),
    Mutant(
        name="holes-counted-by-ticket",
        defect="A place in a block counts what was withdrawn from those behind it, and not from those before.",
        file=INCLUDE + "places.lua",
        old="'(' .. order_of(S, ticket)) or rank",
        new="'(' .. ticket) or rank",
        test=PLACES_IN_BLOCKS,
    ),
    Mutant(
        name="blocks-without-layout",
        defect="A version that knows of no blocks puts messages into the midst of them.",
        file=INCLUDE + "line.lua",
        old="  if block > 0 and S.layout ~= BLOCKS then set(S, 'layout', BLOCKS) end\n",
        new="  if block > 0 then S.layout = BLOCKS end\n",
        test=BLOCKS + "test_those_that_come_back_behind_thousands_begin_a_block_at_the_head",
    ),
    Mutant(
        name="layout-for-ever",
        defect="After blocks an older version can never serve the queue again.",
        file=INCLUDE + "commit.lua",
        old="if S.layout == BLOCKS and S.returned == 0 then",
        new="if false then",
        test=BLOCKS + "test_those_that_come_back_behind_thousands_begin_a_block_at_the_head",
    ),
    Mutant(
        name="whole-line-searched",
        defect="Every step that writes walks through all messages that wait.",
        file=INCLUDE + "commit.lua",
        old="  S.len = S.size - S.n_holes\n  if S.size",
        new="  redis.call('LPOS', K.q, '')\n  S.len = S.size - S.n_holes\n  if S.size",
        test=FLAT,
    ),
    Mutant(
        name="every-lease-looked-at",
        defect="A step that leases asks about all that is leased.",
        file=LUA + "get.lua",
        old="(limit > 0 or S.closed) and leased_count(S) or 0",
        new="#redis.call('ZRANGE', K.leases, 0, -1) + S.n_bundled",
        test=FLAT,
    ),
    Mutant(
        name="given-back-as-it-comes",
        defect="Each batch that comes back moves those that came back before it.",
        file="engine/releasing.py",
        old="(-self._store.ticket_of(lease), next",
        new="(0, next",
        test=MANY_END + "test_those_of_many_holders_come_back_in_order_and_nothing_is_moved_for_it",
    ),
    Mutant(
        name="given-back-all-at-once",
        defect="Who dies with many leases keeps everybody else out of the store until all are back.",
        file="engine/releasing.py",
        old="async with self._turn:",
        new="if True:",
        test=RELEASING + "test_one_step_is_on_its_way_at_a_time_and_queues_take_turns",
    ),
    Mutant(
        name="all-attempts-looked-at",
        defect="A step asks about every lease of hundreds of attempts.",
        file=INCLUDE + "attempts.lua",
        old="if packed and is_of_step(packed, random) then return true, #tickets end",
        new="if packed and redis.call('ZSCORE', K.leases, tickets[_]) and random == '' then return true, 0 end",
        test=MANY_END + "test_whether_attempts_are_over_is_looked_at_in_small_steps",
    ),
    Mutant(
        name="lapsed-one-by-one",
        defect="Each lease that lapses moves the thousands that came back before it.",
        file=INCLUDE + "due.lua",
        old="S.lapse_at > S.now and 0 or DUE_AT_ONCE",
        new="DUE_AT_ONCE",
        test=MANY_END + "test_leases_that_lapse_one_by_one_do_not_move_thousands_each_time",
    ),
    Mutant(
        name="swept-without-end",
        defect="Whatever happens in a queue whose leases wait to lapse sends the sweeper there at once.",
        file=INCLUDE + "commit.lua",
        old="S.lapse_at or S.due_said\n",
        new="S.lapse_at\n",
        test=MANY_END + "test_a_lease_that_waits_to_lapse_does_so_in_time_whatever_else_happens",
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
    Mutant(
        name="three-threads-woken",
        defect="Each request wakes one thread more of gRPC's.",
        file="__init__.py",
        old='os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")',
        new='os.environ.setdefault("GRPC_EXPERIMENTS", "")',
        test=THREADS,
    ),
    Mutant(
        name="operator-not-asked",
        defect="What the operator set of gRPC's inside is overruled.",
        file="__init__.py",
        old='os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")',
        new='os.environ["GRPC_EXPERIMENTS"] = "-event_engine_listener"',
        test=THREADS,
    ),
    Mutant(
        name="nobody-told-to-stay-away",
        defect="Clients that are too many are turned away without being told when to come again.",
        file="rpc/backlog.py",
        old="BUSY = 20",
        new="BUSY = 200",
        test="tests/faults/test_overload.py::test_clients_that_are_too_many_are_told_when_to_come_again",
    ),
    Mutant(
        name="a-flood-that-never-ends",
        defect="What gRPC refused itself stands in line for ever, and so callers are refused for ever.",
        file="rpc/books.py",
        old='never_ended[server_id] = max(_open_count(server, "calls") - open_count, 0)',
        new="never_ended[server_id] = 0",
        test="tests/faults/test_overload.py::test_when_a_flood_is_over_nobody_is_refused",
    ),
    Mutant(
        name="a-flood-let-in",
        defect="A flood that lasts goes on to be made calls of.",
        file="rpc/narrowing.py",
        old="is_flood = is_of_calls and look.refused > accepted",
        new="is_flood = False",
        test="tests/faults/test_overload.py"
        "::test_a_flood_that_lasts_is_kept_out_until_it_is_over_and_who_stands_in_line_keeps_the_place",
    ),
    Mutant(
        name="a-moment-taken-for-a-flood",
        defect="Clients that come at once, and stay away when told to, are held back as a flood.",
        file="rpc/narrowing.py",
        old="LASTS_S = 1.5",
        new="LASTS_S = 0.0",
        test="tests/unit/rpc/test_narrowing.py::test_what_lasts_for_a_moment_is_no_flood",
    ),
    Mutant(
        name="streams-taken-for-a-flood",
        defect="Thousands of streams, opened at once, are held back as a flood.",
        file="rpc/narrowing.py",
        old="is_of_calls = streams - self._streams_before < accepted / 2",
        new="is_of_calls = True",
        test="tests/unit/rpc/test_narrowing.py::test_what_is_no_flood",
    ),
    Mutant(
        name="old-acceptors-cut-off",
        defect="What runs when clients are told to connect anew is cancelled.",
        file="rpc/acceptors.py",
        old="asyncio.create_task(server.stop(_AS_LONG_AS_CALLS_RUN_S))",
        new="asyncio.create_task(server.stop(None))",
        test="tests/unit/rpc/test_acceptors.py::test_what_runs_goes_on_to_its_end_and_the_same_client_calls_the_others",
    ),
    Mutant(
        name="who-keeps-to-the-bound-refused",
        defect="Clients that have as many calls at a time as a connection may are refused some.",
        file="rpc/server.py",
        old="_ENDED_STREAMS = 500",
        new="_ENDED_STREAMS = 0",
        test="tests/faults/test_overload.py::test_clients_that_keep_to_the_streams_of_a_connection_are_not_turned_away",
    ),
    Mutant(
        name="one-after-another",
        defect="Calls are accepted one after another, whoever makes them.",
        file="rpc/acceptors.py",
        old="return max(min(wanted, max_connections // _LEAST_SHARE), 1)",
        new="return 1",
        test="tests/integration/test_lifecycle.py::test_calls_are_accepted_by_as_many_as_are_set",
    ),
    Mutant(
        name="shares-that-fill-by-chance",
        defect="Where few connections are allowed chance refuses some of those.",
        file="rpc/acceptors.py",
        old="return max(min(wanted, max_connections // _LEAST_SHARE), 1)",
        new="return wanted",
        test="tests/integration/test_lifecycle.py::test_calls_are_accepted_by_as_many_as_are_set",
    ),
)
