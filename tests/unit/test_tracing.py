"""The pieces of tracing: what is remembered of leases and places, within bounds, and which jobs are recorded."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanContext, TraceFlags

from headwayd.domain.model import Settled, Settlement
from headwayd.domain.tracing import MOST_MOVES, Carried, Handed
from headwayd.telemetry import contexts, names
from headwayd.telemetry.jobs import Jobs
from headwayd.telemetry.places import Places
from headwayd.telemetry.sampling import sampler
from headwayd.telemetry.works import Work, Works

TRACE_ID, SPAN_ID = 0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER_TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4737-00f067aa0ba902b7-01"
YES = SpanContext(TRACE_ID, SPAN_ID, is_remote=True, trace_flags=TraceFlags(1))
NO = SpanContext(TRACE_ID, SPAN_ID, is_remote=True, trace_flags=TraceFlags(0))


def work(expires_at_ms: int, name: str = "") -> Work:
    return Work(
        queue="q",
        message_id=name,
        attempt=1,
        ticket=1,
        leased_at_ns=0,
        expires_at_ms=expires_at_ms,
        parent=YES,
        job=None,
    )


def test_leases_are_overdue_two_seconds_after_their_end_and_in_its_order() -> None:
    works = Works(10)
    for name, ends in (("late", 2_000), ("early", 1_000), ("never", 9_000)):
        works.add(name, work(ends, name))
    assert list(works.overdue(2_999)) == []
    assert [one.message_id for one in works.overdue(4_000)] == ["early", "late"]
    assert list(works.overdue(4_000)) == []
    assert [one.message_id for one in works.rest()] == ["never"]


def test_lease_that_was_extended_is_overdue_after_its_new_end_only() -> None:
    works = Works(10)
    works.add("lease", work(1_000))
    works.extend("lease", 5_000)
    assert list(works.overdue(6_999)) == []
    (found,) = works.overdue(7_000)
    assert found.extended_count == 1


def test_leases_that_end_before_their_time_leave_nothing_behind() -> None:
    works = Works(10)
    for n in range(1_000):
        works.add(str(n), work(10_000 + n))
        assert works.take(str(n)) is not None
    assert len(works) == 0
    assert len(works._ends) <= 20
    assert list(works.overdue(100_000)) == []


def test_too_many_leases_forget_the_oldest() -> None:
    works = Works(2)
    for name in ("a", "b", "c"):
        works.add(name, work(1_000))
    assert ["a" in works, "b" in works, "c" in works] == [False, True, True]


def test_places_are_thinned_and_keep_the_first_and_the_last() -> None:
    places = Places(10)
    for n in range(1_000):
        places.note("q", "a", n, 1_000 - n)
    moves = places.take("q", "a")
    assert len(moves) <= MOST_MOVES
    assert (moves[0], moves[-1]) == ((0, 1_000), (999, 1))
    assert list(moves) == sorted(moves)
    assert places.take("q", "a") == ()


def test_places_of_too_many_messages_forget_those_not_heard_of_for_longest() -> None:
    places = Places(2)
    for name in ("a", "b", "a", "c"):
        places.note("q", name, 1, 1)
    assert [bool(places.take("q", name)) for name in "abc"] == [True, False, True]
    places.note("q", "a", 1, 1)
    assert places.take("another", "a") == ()


@pytest.mark.parametrize(
    ("ratio", "parent", "links", "is_recorded"),
    [
        (0.0, None, [], False),
        (1.0, None, [], True),
        (1.0, NO, [], False),
        (0.0, YES, [], True),
        (0.0, None, [YES], True),
        (0.0, None, [NO, YES], True),
        (1.0, None, [NO], False),
        (1.0, NO, [YES], False),
    ],
)
def test_the_caller_decides_else_the_jobs_it_is_about_else_the_ratio(
    ratio: float, parent: SpanContext | None, links: list[SpanContext], is_recorded: bool
) -> None:
    tracer = TracerProvider(sampler=sampler(ratio), shutdown_on_exit=False).get_tracer("test")
    span = tracer.start_span("one", context=contexts.below(parent), links=[Link(each) for each in links])
    assert span.is_recording() == is_recorded


@pytest.mark.parametrize(
    "text",
    ["", "nonsense", "00-" + "0" * 32 + "-00f067aa0ba902b7-01", TRACEPARENT[:-1], f"{TRACEPARENT},{TRACEPARENT}"],
)
def test_texts_that_are_no_context_are_none(text: str) -> None:
    assert contexts.read(Carried(text)) is None


def test_context_goes_through_its_texts_with_the_sampled_flag_alone() -> None:
    found = contexts.read(Carried(TRACEPARENT.removesuffix("1") + "3", "vendor=opaque"))
    assert found is not None
    assert contexts.written(found) == Carried(TRACEPARENT, "vendor=opaque")


class Spans:
    """Jobs whose spans are kept here."""

    def __init__(self, ratio: float = 1.0) -> None:
        self._kept = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampler(ratio), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.jobs = Jobs(provider.get_tracer("test"), ratio=ratio)

    def names(self) -> list[str]:
        return [span.name for span in self._kept.get_finished_spans()]

    def of(self, name: str) -> set[object]:
        """The ids of the messages that spans of this name tell of."""
        spans = [span for span in self._kept.get_finished_spans() if span.name == name]
        return {(span.attributes or {})[names.MESSAGE_ID] for span in spans}


def message(lease: str, **changes: object) -> Handed:
    known: dict[str, object] = {"id": "job", "lease": lease, "attempt": 1, "ticket": 1, "put_at_ms": 1_000}
    known |= {"leased_at_ms": 2_000, "expires_at_ms": 10**15, "carried": None}
    return Handed(**(known | changes))  # type: ignore[arg-type]


async def test_leases_that_a_repeated_call_hands_out_again_make_no_second_wait() -> None:
    spans = Spans()
    for _ in range(2):
        spans.jobs.handed("Get", "q", [message("lease")], began_ns=1, caller=None)
    assert spans.names() == ["Get q", "Wait q"]


async def test_message_that_nobody_knows_the_age_of_has_no_wait() -> None:
    spans = Spans()
    spans.jobs.handed("Get", "q", [message("lease", put_at_ms=None, leased_at_ms=None)], began_ns=1, caller=None)
    spans.jobs.close()
    assert spans.names() == ["Get q", "Work q"]


async def test_large_reply_has_spans_for_its_first_hundred_messages_only() -> None:
    spans = Spans()
    spans.jobs.handed("Get", "q", [message(str(n)) for n in range(1_000)], began_ns=1, caller=None)
    spans.jobs.close()
    assert len(spans.names()) == 1 + 2 * 100


UNSAMPLED = Carried(f"{TRACEPARENT[:-1]}0")


@pytest.mark.parametrize("attempt", [1, 2])
@pytest.mark.parametrize("ratio", [0.0, 1.0])
async def test_of_a_batch_each_message_is_recorded_as_its_own_trace_or_the_ratio_says(
    ratio: float, attempt: int
) -> None:
    """Else one recorded job in a hundred would have the other ninety-nine recorded."""
    for carried in ([Carried(TRACEPARENT), None], [UNSAMPLED, None], [UNSAMPLED, Carried(OTHER_TRACEPARENT), None]):
        spans = Spans(ratio)
        messages = [message(str(n), id=str(n), carried=each, attempt=attempt) for n, each in enumerate(carried)]
        spans.jobs.handed("Get", "q", messages, began_ns=1, caller=None)
        spans.jobs.close()
        recorded = {n for n, each in enumerate(carried) if (ratio if each is None else each.traceparent[-1] == "1")}
        assert spans.of("Wait q") == spans.of("Work q") == {str(n) for n in recorded}
        assert spans.names().count("Get q") == bool(recorded)


@pytest.mark.parametrize("carried", [Carried(TRACEPARENT), UNSAMPLED])
def test_a_put_lends_its_messages_of_no_trace_what_the_ratio_says(carried: Carried) -> None:
    assert Spans(0.0).jobs.put("Put", "q", caller=None, carried=[carried, None]).carries is None
    lent = Spans(1.0).jobs.put("Put", "q", caller=None, carried=[carried, None]).carries
    assert lent is not None
    assert lent.traceparent.endswith("-01")
    assert lent.traceparent != TRACEPARENT


async def test_a_caller_decides_about_all_of_its_batch() -> None:
    spans = Spans(0.0)
    carried = [UNSAMPLED, None]
    messages = [message(str(n), id=str(n), carried=each, attempt=2) for n, each in enumerate(carried)]
    spans.jobs.handed("Get", "q", messages, began_ns=1, caller=Carried(TRACEPARENT))
    assert spans.of("Wait q") == {"0", "1"}
    assert spans.jobs.put("Put", "q", caller=Carried(TRACEPARENT), carried=carried).carries is not None


async def test_name_of_a_queue_that_is_refused_for_its_length_is_cut() -> None:
    spans = Spans()
    spans.jobs.put("Put", "q" * 10_000, caller=None, carried=[]).failed("NAME_REFUSED")
    assert spans.names() == ["Put " + "q" * 200]


async def test_defect_of_tracing_is_no_defect_of_the_call() -> None:
    class Broken:
        def start_span(self, *_: object, **__: object) -> None:
            raise RuntimeError("no spans today")

    jobs = Jobs(Broken(), ratio=1.0)  # type: ignore[arg-type]
    span = jobs.put("Put", "q", caller=None, carried=[None])
    assert span.carries is None
    span.done([("job", 1)], deduplicated=0, refused=0)
    jobs.handed("Get", "q", [message("lease")], began_ns=1, caller=None)
    jobs.settled("Ack", "q", [Settlement("lease", Settled.ACKED)], began_ns=1, caller=None)
    jobs.failed("Get", "q", "INTERNAL", began_ns=1, caller=None)
