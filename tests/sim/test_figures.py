"""The figures in docs/schedules.md."""

import pytest

from fullbore.schedules import FAMILIES, build
from fullbore.sim import unit_timeline

BUBBLE = {  # at F = I = W = 1 a stage, and from how many microbatches on
    "gpipe": (lambda p: 3 * (p - 1), lambda p: p),
    "1f1b": (lambda p: 3 * (p - 1), lambda p: p),
    "looped_bfs": (lambda p: 3 * (p - 1), lambda p: p),
    "interleaved_1f1b": (lambda p: 3 * (p - 1), lambda p: p),
    "interleaved_zero_bubble": (lambda p: p - 1, lambda p: p),
    "zbv_zero_bubble": (lambda p: p - 1, lambda p: 2 * p - 1),
    "dualpipev": (lambda p: p - 1, lambda p: 2 * p),
    "zb_h1": (lambda p: p - 1, lambda p: p),
    "zb_h2": (lambda p: p - 1, lambda p: 2 * p - 1),
    "zb": (lambda p: p - 1, lambda p: p),
    "zbv_greedy": (lambda p: p - 1, lambda p: 2 * p - 1),
    "dora": (lambda p: p - 1, lambda p: 2 * p),
    "dora_dfs": (lambda p: 3 * (p - 1), lambda p: p),
}


@pytest.mark.parametrize("name", BUBBLE)
def test_bubbles(name: str):
    bubble, least = BUBBLE[name]
    fixed = FAMILIES[name].fixed_stages_per_rank
    for p in range(1, 5):
        for v in [None] if fixed else [1, 2, 3]:
            for m in range(least(p), least(p) + 5):
                schedule = build(name, num_ranks=p, stages_per_rank=v, num_microbatches=m)
                assert unit_timeline(schedule).bubble == bubble(p)


def test_dualpipev_of_few_microbatches_is_little_slower_than_zbv():
    for p in range(1, 6):
        slower = [
            unit_timeline(build("dualpipev", num_ranks=p, num_microbatches=m)).makespan
            - unit_timeline(build("zbv", num_ranks=p, num_microbatches=m)).makespan
            for m in range(1, 2 * p + 1)
        ]
        assert set(slower[:p]) == {0}
        assert max(slower) == (p > 1) * ((p + 1) // 2)
