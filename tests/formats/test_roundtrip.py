"""What is written is read back, whatever it is; what is read is a schedule or a FormatError."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.formats.strategies import schedules

from fullbore.errors import FormatError
from fullbore.formats import FORMATS, dumps, format_action, loads, parse_action
from fullbore.ir import Placement, Schedule

few = settings(max_examples=20)
NAMES = ["", "gpipe", "# form: x", "größer, als", " padded", "two\nlines", "\ud800", "a\u2028b"]


@few
@given(schedules())
def test_torch_text_in_every_format(schedule: Schedule):
    for name in FORMATS:
        assert loads(dumps(schedule, format=name), format=name) == schedule


@few
@given(schedules(dialect="monarch"))
def test_monarch_text_in_every_format_that_takes_it(schedule: Schedule):
    for name in ("csv", "txt"):
        text = dumps(schedule, format=name, dialect="monarch")
        assert loads(text, format=name, dialect="monarch") == schedule


@few
@given(schedules(), st.data())
def test_what_a_csv_cannot_say(schedule: Schedule, data: st.DataObject):
    """JSON and text keep every field, also where it is not what the actions imply."""
    ranks = st.integers(0, schedule.num_ranks - 1)
    more = data.draw(st.lists(ranks, max_size=3))
    other = replace(
        schedule,
        placement=Placement((*schedule.placement.ranks, *more)),
        num_microbatches=schedule.num_microbatches + data.draw(st.integers(0, 2)),
        forward_only=data.draw(st.booleans()),
        name=data.draw(st.sampled_from(NAMES)),
        parameters=(("num_ranks", 3), ("source", 'a "b"\n, c')),
    )
    found = loads(dumps(other, format="json"), format="json")
    assert found == other
    assert (found.name, found.parameters) == (other.name, other.parameters)
    if other.name.isprintable() and other.name == other.name.strip():
        found = loads(dumps(other, format="txt"), format="txt")
        assert found == other
        assert (found.name, found.parameters) == (other.name, other.parameters)
    if other == schedule:
        return
    with pytest.raises(FormatError, match="a CSV cannot hold this schedule"):
        dumps(other, format="csv")


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=40)
@given(text=st.text(st.sampled_from('0123FBIWR_rs();,"\n\r\t #:{}[]abcdefknow²\x00\ufeff')))
@example(text='"')
@example(text="0F0,0B0\n\n\n")
@example(text='{"fullbore": 1, "programs": {"0": ["0F0"]}}')
@example(text='{"fullbore": 1, "programs": {"0": ["0F999999999"]}}')
@example(text="[" * 100_000)
@example(text='{"fullbore": ' + "1" * 10_000 + "}")
@example(text="0F" + "1" * 200_000)
@example(text="999999999F0")
@example(text="rank 0: 999999999F0")
@example(text="# placement: " + "[" * 100_000)
def test_any_text_is_a_schedule_or_refused(name: str, text: str):
    for dialect in ("torch", "monarch") if name != "json" else ("torch",):
        try:
            found = loads(text, format=name, dialect=dialect)
        except FormatError:
            continue
        assert loads(dumps(found, format="json"), format="json") == found


@few
@given(schedule=schedules(), data=st.data())
def test_a_typing_error_is_a_schedule_or_refused(schedule: Schedule, data: st.DataObject):
    typed = data.draw(st.sampled_from(["", "0", "F", ",", "\n", " ", ";", ")", '"', "#", "{"]))
    where = data.draw(st.floats(0, 1, exclude_max=True))
    for name in FORMATS:
        text = dumps(schedule, format=name)
        place = int(where * len(text))
        try:
            found = loads(text[:place] + typed + text[place + 1 :], format=name)
        except FormatError:
            continue
        assert loads(dumps(found, format="json"), format="json") == found


@few
@given(st.text(max_size=20))
def test_an_action_is_read_whole_or_not_at_all(text: str):
    try:
        action = parse_action(text)
    except FormatError:
        return
    assert parse_action(format_action(action)) == action
