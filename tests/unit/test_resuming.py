"""An event id tells what was told to its end, of the request that it belongs to and of no other."""

from hypothesis import given
from hypothesis import strategies as st

from headwayd.http.resuming import Ends

IDS = st.lists(st.text(max_size=20), max_size=40, unique=True)


@given(ids=IDS, data=st.data())
def test_what_was_told_is_known_to_who_comes_back(ids: list[str], data: st.DataObject) -> None:
    told = data.draw(st.sets(st.sampled_from(ids))) if ids else set[str]()
    ends = Ends("queue", ids)
    for each in told:
        ends.note(each)
    assert Ends("queue", ids, ends.event_id).open_ids == [each for each in ids if each not in told]


@given(ids=IDS.filter(bool), other=IDS)
def test_another_request_knows_nothing_of_it(ids: list[str], other: list[str]) -> None:
    ends = Ends("queue", ids)
    for each in ids:
        ends.note(each)
    assert Ends("another", ids, ends.event_id).open_ids == ids
    if other != ids:
        assert Ends("queue", other, ends.event_id).open_ids == other


@given(ids=IDS, text=st.text())
def test_whatever_is_brought_is_taken_calmly(ids: list[str], text: str) -> None:
    mine = Ends("queue", ids).event_id
    for event_id in (text, mine + text, f"{mine.partition('.')[0]}.{text}"):
        assert set(Ends("queue", ids, event_id).open_ids) <= set(ids)


def test_an_event_id_of_ten_thousand_messages_fits_a_head() -> None:
    ids = [str(n) for n in range(10_000)]
    ends = Ends("queue", ids)
    for each in ids:
        ends.note(each)
    assert len(ends.event_id) < 2_000
    assert Ends("queue", ids, ends.event_id).open_ids == []
