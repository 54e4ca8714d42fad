"""Cases A05 and A16: receives as late as possible, and inputs that stay as they were."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from tests.goldens import Golden

from fullbore.errors import ParameterError
from fullbore.ir import Action, Kind, Schedule
from fullbore.passes import PASSES, SinkReceives, lower
from fullbore.schedules import FAMILIES, build
from fullbore.verify import check

A05 = ("interleaved_1f1b", "interleaved_zero_bubble", "zbv_zero_bubble", "dualpipev", "looped_bfs")
USED_BY = {Kind.F: Kind.RECV_F, Kind.B: Kind.RECV_B, Kind.I: Kind.RECV_B}


def buffers(program: Iterable[Action]) -> tuple[dict[Action, int], int]:
    """How many other actions precede each receive, and the most buffers that are live at once.

    A buffer is live from its receive up to and including the compute that uses it.
    """
    places: dict[Action, int] = {}
    live: set[Action] = set()
    most = others = 0
    for action in program:
        if action.kind in (Kind.RECV_F, Kind.RECV_B):
            places[action] = others
            live.add(action)
            most = max(most, len(live))
            continue
        others += 1
        for leaf in action.leaves:
            if leaf.kind in USED_BY:
                live.discard(Action(leaf.stage, USED_BY[leaf.kind], leaf.microbatch))
    assert not live
    return places, most


@dataclass
class Figures:
    """Of all sizes M of one family, P and V together."""

    receives: int = 0
    moved: int = 0
    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)

    def add(self, before: Schedule, after: Schedule) -> None:
        peaks = []
        for one, other in zip(before.programs, after.programs, strict=True):
            (was, most_before), (now, most_after) = buffers(one), buffers(other)
            assert was.keys() == now.keys()
            assert all(now[receive] >= place for receive, place in was.items())
            self.receives += len(was)
            self.moved += sum(now[receive] > place for receive, place in was.items())
            peaks.append((most_before, most_after))
        self.before.append(max(most for most, _ in peaks))
        self.after.append(max(most for _, most in peaks))


def sunk(name: str, ranks: int, per_rank: int, sizes: Iterable[int]) -> Figures:
    figures = Figures()
    for m in sizes:
        found = build(name, num_ranks=ranks, stages_per_rank=per_rank, num_microbatches=m)
        before = lower(found)
        after = SinkReceives()(before)
        check(after)
        figures.add(before, after)
    return figures


def grid() -> list[tuple[str, int, int]]:
    return [
        (name, p, v)
        for name in A05
        for p in (2, 3, 4, 8)
        for v in ((2,) if FAMILIES[name].fixed_stages_per_rank else (1, 2, 3))
    ]


def test_a05_the_smallest_case():
    figures = sunk("interleaved_1f1b", 2, 1, [2])
    assert (figures.receives, figures.moved) == (4, 1)
    assert (figures.before, figures.after) == ([1], [1])


@pytest.mark.parametrize(("name", "p", "v"), [case for case in grid() if case[1] in (2, 4)])
def test_a05_never_refuses_and_never_holds_more(name: str, p: int, v: int):
    figures = sunk(name, p, v, [1, 4])
    pairs = zip(figures.after, figures.before, strict=True)
    assert all(after <= before for after, before in pairs)


@pytest.mark.slow
def test_a05_receives_moved_and_peak_live_buffers(golden: Golden):
    rows = [
        "Receives as late as the strictest transport allows, M = 1..16 together.",
        "Peaks are the most receive buffers that are live on one rank at once, for the M where",
        "that is most.",
        "",
        f"{'family':24s} {'P':>2s} {'V':>2s} {'receives':>9s} {'moved':>6s} {'peak before':>12s} "
        f"{'after':>6s}",
    ]
    for name, p, v in grid():
        figures = sunk(name, p, v, range(1, 17))
        assert all(a <= b for a, b in zip(figures.after, figures.before, strict=True))
        rows.append(
            f"{name:24s} {p:2d} {v:2d} {figures.receives:9d} {figures.moved:6d} "
            f"{max(figures.before):12d} {max(figures.after):6d}"
        )
    golden("passes/receives_moved.txt", "\n".join(rows))


@pytest.mark.parametrize("name", [*PASSES])
def test_a16_the_input_is_unchanged(name: str):
    make = PASSES[name]
    compute = build("dualpipev", num_ranks=2, num_microbatches=4)
    for found in (compute, lower(compute, shard=True, batch=True)):
        if found.form in make.takes:
            before = repr(found)
            make()(found)
            assert repr(found) == before
            assert make()(found) == make()(found)


@pytest.mark.parametrize("name", [*PASSES])
@pytest.mark.parametrize("given", [{0: ["0F0", "0B0"]}, [["0F0", "0B0"]]], ids=["dict", "list"])
def test_a16_a_dict_or_list_is_refused_and_unchanged(name: str, given: dict | list):
    before = repr(given)
    with pytest.raises(
        ParameterError, match=f"{name}: takes a Schedule, got a {type(given).__name__}"
    ):
        PASSES[name]()(given)  # type: ignore[arg-type]
    assert repr(given) == before
