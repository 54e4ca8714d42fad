"""Whatever is written by hand can be looked at."""

import xml.etree.ElementTree as ET
from random import Random

import pytest

from fullbore.ir import Action, Form, Kind, Placement, Schedule
from fullbore.passes import lower
from fullbore.schedules import FAMILIES, build
from fullbore.view.grid import render_grid, render_html

FUSED = [Kind.OVERLAP_F_B, Kind.SEND_F_RECV_B, Kind.SEND_B_RECV_F]


def any_action(random: Random, depth: int = 0) -> Action:
    if depth < 2 and random.random() < 0.2:
        parts = [any_action(random, depth + 1) for _ in range(random.randrange(3))]
        return Action(-1, random.choice(FUSED), -1, tuple(parts))
    return Action(random.randrange(-1, 4), random.choice([*Kind]), random.randrange(-1, 3))


def made_up(random: Random) -> Schedule:
    placement = Placement(random.choice([(0, 0), (0, 1), (1, 0), (0, 1, 1, 0), (0, 1, 2, 0)]))
    programs = tuple(
        tuple(any_action(random) for _ in range(random.randrange(4)))
        for _ in range(placement.num_ranks)
    )
    return Schedule(programs, placement, random.randrange(1, 3), random.choice([*Form]))


def perhaps_misspelt(random: Random) -> Schedule:
    schedule = build(random.choice([*FAMILIES]), num_ranks=2, num_microbatches=3)
    schedule = random.choice([schedule, lower(schedule)])
    if random.random() < 0.4:
        return schedule
    programs = [list(program) for program in schedule.programs]
    program = random.choice(programs)
    moved = program.pop(random.randrange(len(program)))
    if random.random() < 0.5:
        program.insert(random.randrange(len(program) + 1), moved)
    return schedule.with_programs(programs)


def any_schedule(seed: int) -> Schedule:
    random = Random(seed)
    return random.choice([made_up, perhaps_misspelt])(random)


@pytest.mark.parametrize("options", [{}, {"color": True, "width": 1}, {"compact": True}], ids=str)
def test_any_schedule_prints(options: dict):
    for seed in range(40):
        schedule = any_schedule(seed)
        for lowered in (None, False, True):
            text = render_grid(schedule, lowered=lowered, **options)
            assert all(f"rank {rank}" in text for rank in range(schedule.num_ranks)), seed


def test_any_schedule_shows_in_a_notebook():
    for seed in range(60):
        ET.fromstring(render_html(any_schedule(seed)))


def test_there_are_some_that_run_and_some_that_cannot():
    texts = [render_grid(any_schedule(seed), lowered=False) for seed in range(40)]
    assert 5 < sum("makespan" in text for text in texts) < 35
