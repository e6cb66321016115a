"""Defects of who may do what: callers who are served what they may not, or for longer than they may."""

from __future__ import annotations

from mutants.mutant import LUA, Mutant

_SECURITY = "tests/security/"
_ENDS = _SECURITY + "test_streams_end.py::"
_QUOTAS = _SECURITY + "test_quotas.py::"
_WAITS = _SECURITY + "test_waits_end.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="leases-for-made-up-ones",
        defect="Who has used up its quota of leases gets as many more as it names to be acked, whatever it names.",
        file="engine/guarded.py",
        old="if room < order.max_messages:",
        new="if False:",
        test=_QUOTAS + "test_leases_that_do_not_end_are_exchanged_for_nothing",
    ),
    Mutant(
        name="no-exchange-at-the-quota",
        defect="A worker at its quota of leases may not ack one and take the next in the same call.",
        file="engine/quotas.py",
        old="if not ending:",
        new="if True:",
        test=_QUOTAS + "test_who_settles_at_the_quota_may_take_as_many_and_no_more",
    ),
    Mutant(
        name="nothing-again-at-the-quota",
        defect="A Get made again at the quota of leases is given nothing; its leases are out for nobody.",
        file=LUA + "get.lua",
        old="if ARGV[8] ~= '' then random = deliver_again",
        new="if ARGV[8] ~= '' and me.most > 0 then random = deliver_again",
        test=_QUOTAS + "test_a_get_that_is_made_again_at_the_quota_gives_the_same_leases_once_more",
    ),
    Mutant(
        name="no-standing-at-the-quota",
        defect="A poller whose call ended no lease is not told at the quota of leases that it stands on, and where.",
        file=LUA + "get.lua",
        old="elseif me.most == 0 then\n  wait = 'line' ",
        new="elseif me.most == 0 then\n  wait = '' ",
        test=_QUOTAS + "test_a_poller_that_the_quota_gives_nothing_keeps_its_place_and_is_told_it",
    ),
    Mutant(
        name="waiting-puts-count-for-nothing",
        defect="Puts that wait for room pass the quota of messages, however many, when there is room for them all.",
        file="engine/quotas.py",
        old="self._put_count + self._claimed_count + count > most",
        new="self._put_count + count > most",
        test=_QUOTAS + "test_puts_that_wait_for_room_count_as_long_as_they_wait_and_no_longer",
    ),
    Mutant(
        name="counted-without-room",
        defect="A Put that found no room uses up the quota of messages all the same, until the service looks again.",
        file="engine/quotas.py",
        old="if isinstance(error, (OutcomeUnknown, asyncio.CancelledError)):",
        new="if True:",
        test=_QUOTAS + "test_puts_that_wait_for_room_count_as_long_as_they_wait_and_no_longer",
    ),
    Mutant(
        name="refused-for-those-behind",
        defect="A batch is refused by a quota that has room for it, because of the batches that came behind it.",
        file="rpc/producing.py",
        old="with suppress(QuotaExceeded):",
        new="with suppress():",
        test="tests/unit/rpc/test_producing.py::"
        "test_what_a_quota_has_no_room_for_together_is_put_batch_by_batch_up_to_the_first_that_exceeds_it",
    ),
    Mutant(
        name="extended-counts-twice",
        defect="A stream that extends its leases has them counted twice.",
        file="engine/guarded.py",
        old="bool(result.lease) and result.settled is not Settled.EXTENDED",
        new="True",
        test=_QUOTAS + "test_a_stream_that_extends_its_leases_has_them_still",
    ),
    Mutant(
        name="bundles-weigh-nothing",
        defect="Messages that were leased together take no bytes of the quota.",
        file="store/lua/weigh.lua",
        old=" 'bundle',",
        new="",
        test=_QUOTAS + "test_bytes_of_messages_that_were_leased_together",
    ),
    Mutant(
        name="expired-token-remembered",
        defect="Who was found once is served for ever, though the token has expired.",
        file="rpc/guard.py",
        old="caller.expires_at > time.time() and ",
        new="",
        test=_ENDS + "test_a_token_that_was_served_is_refused_once_it_has_expired",
    ),
    Mutant(
        name="file-read-for-nobody",
        defect="A token that was taken back is served as long as it is remembered.",
        file="rpc/guard.py",
        old=" and self._version == self._access.version:",
        new=":",
        test=_WAITS + "test_a_get_that_settled_tells_that_when_its_wait_is_cut_off",
    ),
    Mutant(
        name="cut-off-stays-in-line",
        defect="A Get that is cut off stays in line, and is given what nobody is told of.",
        file="engine/getting.py",
        old="            self._consumers.give_up(consumer)\n            raise why_not",
        new="            raise why_not",
        test=_WAITS + "test_a_get_and_a_put_that_wait_end_when_their_token_expires",
    ),
    Mutant(
        name="namespaces-share-queues",
        defect="A queue of a namespace is the default namespace's of the same name.",
        file="engine/guarded.py",
        old="int(self._identity.roles_on(queue)), self._qualifier + queue",
        new="int(self._identity.roles_on(queue)), queue",
        test=_SECURITY + "test_namespaces.py::test_the_same_name_is_another_queue_in_every_namespace",
    ),
    Mutant(
        name="inside-names-told",
        defect="Errors quote the name that a queue has inside, with its namespace.",
        file="engine/guarded.py",
        old="error.text = bare(error.text, own)",
        new="pass",
        test=_SECURITY + "test_namespaces.py::test_no_answer_holds_the_name_that_a_queue_has_inside",
    ),
    Mutant(
        name="patterns-mean-nothing",
        defect="Roles on some queues are roles on all.",
        file="domain/access.py",
        old="(grant for grant in self.grants if grant.covers(queue))",
        new="iter(self.grants)",
        test="tests/unit/test_access.py::test_roles_of_several_grants_add_up_where_both_cover",
    ),
    Mutant(
        name="anybody-pauses",
        defect="Whoever has any role on a queue may pause it.",
        file="engine/guarded.py",
        old="self._engine.pause(self._own(queue, _ADMIN)",
        new="self._engine.pause(self._own(queue, _ANY)",
        test=_SECURITY + "test_rights.py::test_a_role_is_served_what_the_document_allows",
    ),
    Mutant(
        name="schema-for-everybody",
        defect="Reflection is served without credentials where calls need them.",
        file="rpc/reflection.py",
        old="behaviour if guard is None else guarded(behaviour, guard)",
        new="behaviour",
        test=_SECURITY + "test_reflection.py::test_it_needs_credentials_where_calls_do",
    ),
    Mutant(
        name="audience-not-checked",
        defect="A token that was signed for another service is taken.",
        file="access/signed.py",
        old='options={"require": ["exp", "iss", "aud"]}',
        new='options={"require": ["exp", "iss"], "verify_aud": False}',
        test=_SECURITY + "test_signed.py::test_a_token_that_is_not_sound_is_refused_without_being_quoted",
    ),
    Mutant(
        name="metrics-for-admins-of-a-namespace",
        defect="The admin of a namespace sees the metrics of all.",
        file="rpc/guard.py",
        old="identity.namespace == DEFAULT and ",
        new="",
        test=_SECURITY + "test_http_port.py::test_metrics_are_for_the_operator_and_probes_for_everybody",
    ),
    Mutant(
        name="certificate-for-any-page",
        defect="A page of somebody else's calls by the certificate that its reader's browser shows.",
        file="http/certified.py",
        old='if certificate and self._origins.is_foreign(Headers(scope=scope), scope["scheme"]):',
        new="if False:",
        test=_SECURITY + "test_http_port.py::test_where_any_page_may_call_none_does_by_the_certificate_of_its_reader",
    ),
)
