"""The grid on a terminal."""

import re
from dataclasses import replace

import pytest

from fullbore.errors import ParameterError
from fullbore.formats import loads
from fullbore.ir import Action, Form, Kind, Placement, Schedule
from fullbore.schedules import build
from fullbore.view.grid import render_grid

LOWERED = """\
0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0RESHARD,0REDUCE_GRAD
1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1RESHARD,1REDUCE_GRAD
"""


def visible(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


@pytest.mark.parametrize(
    ("golden_name", "name", "num_ranks", "options"),
    [
        ("1f1b.txt", "1f1b", 4, {}),
        ("zbv.txt", "zbv", 4, {}),
        ("dualpipev.txt", "dualpipev", 2, {}),
        ("1f1b_folded.txt", "1f1b", 4, {"width": 60}),
        ("interleaved_compact.txt", "interleaved_1f1b", 4, {"compact": True}),
        ("1f1b_color.txt", "1f1b", 2, {"color": True}),
        ("1f1b_listed.txt", "1f1b", 3, {"lowered": True}),
    ],
)
def test_pictures(golden, golden_name: str, name: str, num_ranks: int, options: dict):
    schedule = build(name, num_ranks=num_ranks, num_microbatches=6)
    golden(f"grid/{golden_name}", render_grid(schedule, **{"width": 120, **options}))


def test_every_line_fits_the_width():
    schedule = build("zbv", num_ranks=4, num_microbatches=8)
    for width in (50, 79, 100, 120, 1000):
        assert max(map(len, render_grid(schedule, width=width).splitlines())) <= width


def test_a_width_of_0_never_folds():
    schedule = build("1f1b", num_ranks=4, num_microbatches=64)
    assert sum("rank 0" in line for line in render_grid(schedule, width=0).splitlines()) == 1


def test_too_narrow_a_terminal_gets_one_unit_a_strip():
    schedule = build("1f1b", num_ranks=2, num_microbatches=1)
    text = render_grid(schedule, width=1)
    assert sum(line.startswith("rank 0") for line in text.splitlines()) == 6


def test_a_name_cannot_steer_the_terminal():
    schedule = build("1f1b", num_ranks=1, num_microbatches=1)
    for name in ("\x1b[31mred", "two\nlines", "\x9b2J", "\u202eflipped"):
        text = render_grid(replace(schedule, name=name), width=0)
        assert text.startswith(f"{name!a}: 1 rank")
    assert render_grid(replace(schedule, name="計画"), width=0).startswith("計画: 1 rank")


def test_a_negative_width_is_refused():
    with pytest.raises(ParameterError, match="got -1"):
        render_grid(build("1f1b", num_ranks=2, num_microbatches=1), width=-1)


@pytest.mark.parametrize(("environment", "width"), [({"COLUMNS": "60"}, 60), ({}, 120)])
def test_the_terminal_says_how_wide(monkeypatch, environment: dict[str, str], width: int):
    monkeypatch.delenv("COLUMNS", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.__stdout__", None)
    schedule = build("1f1b", num_ranks=4, num_microbatches=16)
    assert render_grid(schedule) == render_grid(schedule, width=width)


@pytest.mark.parametrize("compact", [False, True])
def test_colours_change_no_letter(compact: bool):
    schedule = build("zbv", num_ranks=2, num_microbatches=3)
    colored = render_grid(schedule, color=True, compact=compact, width=0)
    plain = render_grid(schedule, compact=compact, width=0)
    assert "\x1b[" in colored
    assert "\x1b[" not in plain
    # Legends differ: colours have swatches.
    assert visible(colored).splitlines()[:5] == plain.splitlines()[:5]


def test_a_lowered_schedule_is_listed_or_drawn_over_time():
    schedule = loads(LOWERED, format="csv")
    listed = render_grid(schedule, width=120)
    assert listed == render_grid(schedule, width=120, lowered=True)
    assert "step  rank 0        rank 1" in listed
    assert "2     0SEND_F0      1F0" in listed
    drawn = render_grid(schedule, width=120, lowered=False)
    assert "time" in drawn
    assert "SEND" not in drawn


def test_reduce_grad_can_be_left_out_of_the_list():
    schedule = loads(LOWERED, format="csv")
    assert "0REDUCE_GRAD" in render_grid(schedule)
    assert "REDUCE_GRAD" not in render_grid(schedule, reduce_grad=False)


def test_reduce_grad_takes_a_unit_over_time_or_is_left_out():
    schedule = loads(LOWERED, format="csv")
    with_it = render_grid(schedule, lowered=False)
    assert "rank 0  F0 ·  ·  ·  B0─── R" in with_it.splitlines()
    assert "makespan 7," in with_it
    without = render_grid(schedule, lowered=False, reduce_grad=False)
    assert "rank 0  F0 ·  ·  ·  B0───" in without.splitlines()
    assert "makespan 6," in without


def test_ranks_that_do_not_fit_beside_each_other_follow_below():
    schedule = build("1f1b", num_ranks=4, num_microbatches=1)
    text = render_grid(schedule, lowered=True, width=24)
    heads = [line for line in text.splitlines() if line.startswith("step")]
    assert heads == ["step  rank 0  rank 1", "step  rank 2  rank 3"]


def test_a_schedule_that_cannot_run_is_listed_without_times():
    schedule = loads("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", format="csv")
    text = render_grid(schedule, width=80)
    assert "cannot run" in text
    assert "makespan" not in text
    assert "0     0F0     1F1" in text
    assert "1     0B0 !   1B1" in text


@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param(Schedule(((), ()), Placement.linear(2), 1), id="no action at all"),
        pytest.param(Schedule(((),), Placement.linear(1), 1, Form.LOWERED), id="none, lowered"),
        pytest.param(
            Schedule(((Action(0, Kind.F, 0),), ()), Placement.linear(2), 1), id="an idle rank"
        ),
        pytest.param(build("1f1b", num_ranks=1, num_microbatches=1), id="1x1"),
        pytest.param(build("forward_only", num_ranks=3, num_microbatches=1), id="forward only"),
        pytest.param(loads("0F99,0B99\n", format="csv"), id="one of many microbatches"),
        pytest.param(loads("1F0,1B0\n0F0,0B0\n", format="csv"), id="stages in another order"),
        pytest.param(
            Schedule(((Action(5, Kind.F, 9),),), Placement.linear(1), 1), id="out of range"
        ),
        pytest.param(
            Schedule(((Action(-1, Kind.OVERLAP_F_B),),), Placement.linear(1), 1), id="no parts"
        ),
    ],
)
@pytest.mark.parametrize("lowered", [False, True])
def test_anything_prints(schedule: Schedule, lowered: bool):
    for options in ({}, {"color": True}, {"compact": True}, {"width": 1}):
        assert render_grid(schedule, lowered=lowered, **options)


def test_a_stage_on_an_unexpected_rank_shows_in_every_cell():
    assert "rank 0  ·   1F0 1B0" in render_grid(loads("1F0,1B0\n0F0,0B0\n", format="csv"))


def test_print_shows_the_grid():
    schedule = build("gpipe", num_ranks=2, num_microbatches=2)
    assert str(schedule) == render_grid(schedule)
