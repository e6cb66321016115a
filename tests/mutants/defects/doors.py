"""Defects of the HTTP port's doors, and of who may ask there."""

from __future__ import annotations

from mutants.mutant import LUA, WIRE, Mutant

_GUARDS = "tests/web/test_guards.py::"
_HTTP = "tests/integration/test_http.py::"
_JOBS = "tests/web/test_jobs.py::"
_XQUEUE = "tests/web/test_xqueue.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="worker-left-behind",
        defect="Each try to start a worker that nobody could wait for leaves a process behind.",
        file="store/children.py",
        old="child.is_wanted = False",
        new="pass",
        test="tests/integration/test_workers.py::test_a_worker_that_nobody_could_wait_for_is_not_left_behind",
    ),
    Mutant(
        name="other-sites-may-ask",
        defect="A request that a browser says comes from another site is served if it names no origin: a job is taken "
        "by the address of an image.",
        file="http/origins.py",
        old="            return site not in _OWN_SITE\n",
        new="            return origin is not None and site not in _OWN_SITE\n",
        test=_GUARDS + "test_a_page_of_another_site_is_refused_and_takes_nothing",
    ),
    Mutant(
        name="hidden-pages-take",
        defect="Where a browser does not say whose page asks, at a plain HTTP address, that of an image takes jobs.",
        file="http/jobs/doors.py",
        old="        if is_hidden(request.headers):",
        new="        if False:",
        test=_GUARDS + "test_a_browser_that_does_not_say_whose_page_asks_takes_nothing_by_a_get",
    ),
    Mutant(
        name="any-name-leads-here",
        defect="A service that knows no callers answers by whatever name it is called.",
        file="oversight.py",
        old="return settings.http_hosts if is_open else None",
        new="return None if is_open else None",
        test=_GUARDS + "test_where_callers_are_not_known_only_names_that_are_known_lead_here",
    ),
    Mutant(
        name="place-outlives-its-connection",
        defect="A place is not given up when its connection ends, and keeps its turn until it lapses.",
        file="http/jobs/places.py",
        old="            connection.on_end(lambda: self._ended(connection))\n",
        new="",
        test=_XQUEUE + "test_the_connections_end_gives_the_place_up_at_once",
    ),
    Mutant(
        name="place-of-all-callers",
        defect="Callers who share a connection share a place.",
        file="http/jobs/places.py",
        old='(queue, request.headers.get("authorization", ""))',
        new='(queue, "")',
        test=_XQUEUE + "test_a_place_is_of_one_caller_even_on_one_connection",
    ),
    Mutant(
        name="silent-pollers-cut",
        defect="A connection that waits for its next poll is closed like any other that is silent.",
        file="http/protocol.py",
        old="max(self.config.timeout_keep_alive, self.connection.silence_s)",
        new="self.config.timeout_keep_alive",
        test=_XQUEUE + "test_whoever_asks_within_the_window_keeps_the_place",
    ),
    Mutant(
        name="full-taken-for-dead",
        defect="With as many connections as it takes a service does not tell that it is well, and is killed for it.",
        file="http/protocol.py",
        old="self._is_asking = data.startswith(_CHECKS)",
        new="pass",
        test=_HTTP + "test_beyond_the_most_connections_health_is_still_told_and_nothing_else",
    ),
    Mutant(
        name="spare-without-end",
        defect="Who connects to a full service and says nothing keeps others from asking whether it is well.",
        file="http/protocol.py",
        old="self.loop.call_later(SPARE_S, self._refuse)",
        new="None",
        test=_HTTP + "test_spare_connections_are_few_and_not_for_long",
    ),
    Mutant(
        name="caller-gone-call-goes-on",
        defect="Who hangs up while its take waits stands on, and is given a job that it does not get.",
        file="http/jobs/doors.py",
        old='(while_there(request, get) if "wait" in query else get)',
        new="get",
        test=_JOBS + "test_who_hangs_up_while_it_waits_leaves_the_line_and_takes_nothing",
    ),
    Mutant(
        name="stream-too-soon-for-a-place",
        defect="A stream that comes back to a poller's place is refused before its time, so nobody can leave early.",
        file=LUA + "get.lua",
        old="local is_poll = acked == 0 and ARGV[12] == ''",
        new="local is_poll = acked == 0",
        test=WIRE + "test_poll.py::test_a_stream_is_never_too_soon_for_a_pollers_place_and_its_end_gives_that_up",
    ),
    Mutant(
        name="address-left-to-anybody",
        defect="A second service on the same address takes a share of the first one's calls without a word.",
        file="rpc/acceptors.py",
        old="if self._reuses_port and not self._shares_addresses:",
        new="if not self._reuses_port and not self._shares_addresses:",
        test="tests/unit/rpc/test_acceptors.py::test_an_address_is_theirs_alone",
    ),
    Mutant(
        name="one-line-looked-at",
        defect="Of the lines of calls that wait only one counts.",
        file="rpc/acceptors.py",
        old="return [one for servers in (self._servers, *self._old) for one in servers.ids]",
        new="return sorted(self._servers.ids)[:1]",
        test="tests/unit/rpc/test_acceptors.py::test_what_waits_is_counted_over_all",
    ),
    Mutant(
        name="bodies-take-no-room",
        defect="As many bytes come in at a time as are sent.",
        file="http/bodies.py",
        old="        if more:\n",
        new="        if False:\n",
        test="tests/unit/test_bodies.py::test_what_has_come_takes_room_until_it_has_ended",
    ),
    Mutant(
        name="bodies-wait-for-each-other",
        defect="Large bodies that each have come in part wait for each other until all have failed.",
        file="http/bodies.py",
        old="                elif self._lent_to is None:\n",
        new="                elif False:\n",
        test="tests/web/test_bodies.py::test_large_bodies_in_each_others_way_all_come_in",
    ),
    Mutant(
        name="length-beside-chunks",
        defect="A length that is said of a body that comes in chunks is believed.",
        file="http/bodies.py",
        old=' and "transfer-encoding" not in headers',
        new="",
        test="tests/unit/test_bodies.py::test_a_length_beside_a_transfer_encoding_says_nothing",
    ),
    Mutant(
        name="handshakes-for-whoever-came-first",
        defect="As many connections as there may be that never shake hands keep everybody else out.",
        file="http/handshakes.py",
        old="            oldest.cancel()\n",
        new="            connection.close()\n            return\n",
        test="tests/security/test_http_port.py::test_who_never_shakes_hands_keeps_nobody_out",
    ),
    Mutant(
        name="handshakes-unbounded",
        defect="Any number of connections may be open that never shake hands.",
        file="http/handshakes.py",
        old="            oldest.cancel()\n",
        new="",
        test="tests/security/test_http_port.py::test_who_never_shakes_hands_keeps_nobody_out",
    ),
    Mutant(
        name="pages-are-one-connection",
        defect="All pages of the dashboard together may follow as many queues as one connection may.",
        file="http/overview.py",
        old='f"dashboard:{next(_NUMBERS)}"',
        new='""',
        test="tests/web/test_dashboard.py::"
        "test_pages_that_look_at_different_queues_do_not_share_the_streams_of_one_connection",
    ),
    Mutant(
        name="pages-hold-the-port-open",
        defect="A page that looks on holds the end of the service up until it is cut off.",
        file="http/doors.py",
        old="        self.shows.close()\n",
        new="",
        test="tests/web/test_dashboard.py::test_a_page_ends_well_when_the_service_goes_down_and_holds_nothing_up",
    ),
)
