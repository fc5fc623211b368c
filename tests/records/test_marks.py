"""Places as bits, against plain loops; cuts that these make, against reading byte by byte."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.records.line_block import split_lines
from bestiary.records.marks import before, behind, between, count, first_place, marks, places, since
from bestiary.records.record_walk import walk_record
from bestiary.records.splitting import cut_lines, cut_quoted

TEXTS = st.one_of(
    st.text(st.sampled_from('a",\n'), max_size=300), st.text(st.sampled_from("a" * 40 + '"\n'), max_size=300)
)


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.integers(0, 300))
def test_places_are_those_of_a_loop(text: str, at: int) -> None:
    data, at = text.encode(), min(at, len(text))
    quotes, feeds = marks(data, 34, 10)
    expected = [place for place, byte in enumerate(data) if byte == 34]
    assert places(quotes).tolist() == expected and first_place(quotes) == data.find(b'"')
    assert places(since(quotes, at)).tolist() == [place for place in expected if place >= at]
    assert count(feeds, at) == data[:at].count(b"\n")
    assert places(before(quotes)).tolist() == [place - 1 for place in expected if place]
    assert [place for place in places(behind(quotes)).tolist() if place < len(data)] == [
        place + 1 for place in expected if place + 1 < len(data)
    ]
    inside = places(between(quotes)).tolist()
    assert [place for place in inside if place < len(data)] == [
        place for place in range(len(data)) if data[: place + 1].count(b'"') % 2
    ]


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.booleans())
def test_cuts_are_those_of_reading_byte_by_byte(text: str, final: bool) -> None:
    data, at, expected = text.encode(), 0, list[tuple[int, int]]()
    while at < len(data) and (end := walk_record(data, at, b",", final).end) >= 0:
        expected += [(at, end)] if data[at:end].strip(b" \t\r\n") else []
        at = end
    cut = cut_quoted(data, b",", final)
    assert list(zip(cut.starts.tolist(), cut.stops.tolist(), strict=True)) == expected and cut.used == at


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("aaab\r \n"), max_size=60), st.integers(1, 70), st.booleans())
def test_lines_split_at_once_are_those_that_are_cut(text: str, room: int, final: bool) -> None:
    data, split = text.encode(), split_lines(text.encode(), room, final)
    if split is None:
        return
    cut = cut_lines(data, final)
    chosen = [
        (start, stop) for start, stop in zip(cut.starts.tolist(), cut.stops.tolist(), strict=True) if start < room
    ]
    assert split[0] == [data[start:stop].removesuffix(b"\n") for start, stop in chosen]
    assert split[1] == (chosen[-1][1] if chosen else 0)
