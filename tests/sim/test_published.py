"""Bubble rates of the zero-bubble papers (arXiv 2401.10241, tables 5 and 8), DualPipe's formula."""

import pytest

from fullbore.schedules import build
from fullbore.sim import TableCosts, UniformCosts, simulate

# Per rank: ranks, microbatches, F, I, W, latency (ms), stages a rank of interleaved 1F1B, and the
# bubble rates of 1F1B and interleaved 1F1B. The published column of the latter is wrong in both
# tables: the authors' script drops dependencies where a chunk wraps around. These are right.
TABLE_5 = [
    (8, 24, 18.522, 18.086, 9.337, 0.601, 3, 0.2431, 0.1090),
    (8, 32, 18.513, 18.086, 9.331, 0.626, 3, 0.1985, 0.0847),
    (8, 64, 18.546, 18.097, 9.321, 0.762, 3, 0.1240, 0.0461),
    (8, 24, 29.718, 29.444, 19.927, 0.527, 4, 0.2347, 0.0827),
    (8, 32, 29.802, 29.428, 19.530, 0.577, 4, 0.1898, 0.0644),
    (8, 64, 29.935, 29.621, 19.388, 0.535, 4, 0.1091, 0.0328),
    (16, 48, 11.347, 11.248, 8.132, 0.377, 3, 0.2552, 0.1136),
    (16, 64, 11.307, 11.254, 8.101, 0.379, 3, 0.2082, 0.0878),
    (16, 128, 11.325, 11.308, 8.109, 0.378, 3, 0.1251, 0.0459),
    (32, 96, 10.419, 10.207, 7.715, 0.408, 2, 0.2646, 0.1528),
    (32, 128, 10.408, 10.204, 7.703, 0.408, 2, 0.2168, 0.1192),
    (32, 256, 10.402, 10.248, 7.698, 0.460, 2, 0.1352, 0.0641),
]
# Here F, I and W are those of one of a rank's two chunks, in us.
TABLE_8 = [
    (16, 48, 14407, 14380, 9676, 1610, 2, 0.2668, 0.1549),
    (16, 64, 14412, 14393, 9688, 1621, 2, 0.2206, 0.1209),
    (16, 128, 14316, 14306, 9639, 1619, 2, 0.1390, 0.0644),
    (24, 72, 6763, 6969, 5251, 755, 2, 0.2699, 0.1566),
    (24, 96, 6783, 6984, 5259, 758, 2, 0.2229, 0.1223),
    (24, 192, 6785, 6990, 5260, 770, 2, 0.1403, 0.0652),
    (32, 96, 9458, 9748, 7288, 879, 2, 0.2676, 0.1549),
    (32, 128, 9469, 9744, 7306, 892, 2, 0.2204, 0.1210),
    (32, 256, 9447, 9644, 7193, 887, 2, 0.1362, 0.0644),
]
BY_RANK = TABLE_5 + [(p, m, 2 * f, 2 * i, 2 * w, *rest) for p, m, f, i, w, *rest in TABLE_8]


@pytest.mark.parametrize("row", BY_RANK, ids=lambda row: f"p{row[0]}-m{row[1]}-{row[2]}")
def test_bubble_rates(row: tuple[float, ...]):
    p, m, f, i, w, latency, v, plain, interleaved = row
    costs = UniformCosts(F=f, I=i, W=w, latency=latency)
    one = build("1f1b", num_ranks=int(p), num_microbatches=int(m))
    many = build(
        "interleaved_1f1b", num_ranks=int(p), num_microbatches=int(m), stages_per_rank=int(v)
    )
    assert simulate(one, costs).span_bubble_rate == pytest.approx(plain, abs=5.1e-5)
    assert simulate(many, costs).span_bubble_rate == pytest.approx(interleaved, abs=5.1e-5)


@pytest.mark.parametrize("num_ranks", [4, 8])
@pytest.mark.parametrize("block", [2, 3])
def test_dualpipe_formula(num_ranks: int, block: int):
    """(PP/2 - 1)(F&B + B - 3W) with PP = 2R, B the full backward, everything else 1."""
    schedule = build("dualpipev", num_ranks=num_ranks, num_microbatches=2 * num_ranks + 4)
    timeline = simulate(schedule, TableCosts(F=1, I=1, W=1, overlap=block))
    assert max(timeline.idle) == (num_ranks - 1) * (block + 2 - 3)


def test_dualpipe_of_unequal_halves():
    schedule = build("dualpipev", num_ranks=4, num_microbatches=12)
    timeline = simulate(schedule, TableCosts(F=1, I=1.2, W=0.8, overlap=3))
    assert max(timeline.idle) == pytest.approx(7.2)


def test_a17_an_overlap_as_one_block():
    schedule = build("dualpipev", num_ranks=4, num_microbatches=8)
    assert simulate(schedule, TableCosts(F=1, I=1, W=1, overlap=3)).makespan == 54
