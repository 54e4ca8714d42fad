"""The planner on published instances: what it reaches, beside the bound, a target and what others
reach.

Costs are those of the zero-bubble papers (arXiv 2401.10241, table 6; the V paper's table 8), memory
that of a transformer: a rank holds 34 h + 5 a s of a microbatch from F to I and 32 h from I to W.
``--until-w`` also shows what is reached where everything is held until W. With several ``--seeds``,
times are the largest, and a target is met if all seeds meet it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from time import process_time

from bench.common import provenance, table

from fullbore.ir import Placement
from fullbore.plan import Plan, plan
from fullbore.plan.loops import warm_up
from fullbore.sim import Costs, TableCosts, UniformCosts

HELD, KEPT = 34 * 4096 + 5 * 32 * 1024, 32 * 4096
MIDDLE = (29.718, 29.444, 19.927, 0.527)  # 6.2B, p = 8, m = 24
TABLE_8 = {
    "6.2B": (16, 48, (28.814, 28.760, 19.352, 1.610)),
    "14.6B": (24, 72, (13.526, 13.938, 10.502, 0.755)),
    "28.3B": (32, 96, (18.916, 19.496, 14.576, 0.879)),
}


@dataclass(frozen=True)
class Instance:
    """One row.

    Attributes:
        name: of the costs.
        size: P and M.
        shapes, stages_per_rank: which placements.
        memory: in multiples of P microbatches' activations.
        goal: what to reach, as a bubble rate of the objective or as a gap to the bound.
        elsewhere: the best known otherwise, in the same measure.
        measure: ``"bubble"`` or ``"gap"``.
        factors: how much longer than the others each rank takes.
    """

    name: str
    size: tuple[int, int]
    shapes: tuple[str, ...]
    stages_per_rank: tuple[int, ...]
    memory: float
    goal: float
    elsewhere: str = "-"
    measure: str = "bubble"
    objective: str = "makespan"
    times: tuple[float, float, float, float] = MIDDLE
    factors: tuple[float, ...] = ()

    def costs(self, *, kept: float) -> Costs:
        """What things cost."""
        f, i, w, latency = self.times
        if not self.factors:
            return UniformCosts(
                F=f, I=i, W=w, latency=latency, activation_bytes=HELD, kept_bytes=kept
            )
        (count,), (shape,) = self.stages_per_rank, self.shapes
        ranks = self.size[0]
        placement = Placement.vee(ranks) if shape == "vee" else Placement.loop(ranks, count)
        scale = [self.factors[rank] / count for rank in placement.ranks]
        return TableCosts(
            F=[f * x for x in scale],
            I=[i * x for x in scale],
            W=[w * x for x in scale],
            latency=latency,
            activation_bytes=HELD / count,
            kept_bytes=kept / count,
        )

    def value(self, found: Plan) -> float:
        """What was reached, in the row's measure."""
        best = found.best
        if self.measure == "gap":
            return max(0.0, best.gap)
        return best.span_bubble_rate if self.objective == "span" else best.makespan_bubble_rate

    def bound(self, found: Plan) -> float:
        """The bound, in the row's measure."""
        if self.measure == "gap":
            return 0.0
        best = found.best
        rate = best.span_bubble_rate if self.objective == "span" else best.makespan_bubble_rate
        return 1 - (1 - rate) * best.length / found.bound

    @property
    def label(self) -> str:
        """The instance in words."""
        shapes = "/".join(self.shapes)
        counts = ",".join(map(str, self.stages_per_rank))
        ranks, microbatches = self.size
        return f"{self.name} ({ranks},{microbatches}) {shapes} v={counts} memory {self.memory:g}x"


def instances() -> Iterator[Instance]:
    """The table's rows."""
    for size in ((4, 8), (8, 24), (16, 64)):
        for memory in (1.0, 2.0):
            yield Instance("6.2B", size, ("loop",), (1,), memory, 0.001, "0", "gap")
    small = (8, 24)
    yield Instance("6.2B", small, ("vee",), (2,), 1.0, 0.0575, ".0601")
    yield Instance("6.2B", small, ("loop",), (2,), 1.0, 0.0645, ".0761")
    yield Instance("6.2B", small, ("loop",), (4,), 1.0, 0.0412, ".0482")
    yield Instance("6.2B", (16, 64), ("loop",), (4,), 1.0, 0.0330, ".0387")
    for (name, (ranks, microbatches, times)), best in zip(
        TABLE_8.items(), (0.0791, 0.0749, 0.0692), strict=True
    ):
        yield Instance(
            *(name, (ranks, microbatches), ("loop", "vee"), (2, 4), 1.0, best - 5e-5),
            elsewhere=f"{best:.4f}",
            times=times,
        )
    yield Instance("6.2B", small, ("vee",), (2,), 0.625, 0.1447, ".1447")
    yield Instance("6.2B", (4, 8), ("vee",), (2,), 0.5, 0.2750, ".2895")
    yield Instance("6.2B", small, ("vee",), (2,), 0.5, 0.24095, ".2410")
    for shape, count, gap in (("loop", 1, 0.001), ("vee", 2, 0.005), ("loop", 2, 0.01)):
        yield Instance("6.2B", (64, 512), (shape,), (count,), 1.0, gap, measure="gap")
    yield Instance("6.2B", (64, 512), ("loop",), (4,), 1.0, 0.01, measure="gap")
    yield Instance("6.2B", small, ("loop",), (1,), 2.0, 0.0015, ".0029", objective="span")
    yield from heterogeneous()


def heterogeneous() -> Iterator[Instance]:
    """Stages that take different times; the goals are an earlier prototype's gaps in percent."""
    goals = {
        ("last +50 %", 8): (0, 0, 0, 0),
        ("random", 8): (0.03, 0, 0.03, 0.56),
        ("ramp", 8): (0, 0, 0, 0),
        ("half 0.6", 8): (0.66, 0, 0, 0.30),
        ("random", 16): (1.13, 0, 0.09, 0),
        ("ramp", 16): (0, 0, 0.26, 0),
        ("half 0.6", 16): (0.52, 0, 0, 0.34),
    }
    kinds = (("loop", 1, 1.0), ("loop", 1, 2.0), ("vee", 2, 1.0), ("loop", 2, 1.0))
    for (profile, ranks), row in goals.items():
        for (shape, count, memory), goal in zip(kinds, row, strict=True):
            yield Instance(
                *(f"6.2B {profile}", (ranks, 24 if ranks == 8 else 64), (shape,), (count,)),
                *(memory, goal / 100 + 5e-5),
                measure="gap",
                factors=factors(profile, ranks),
            )


def factors(profile: str, ranks: int) -> tuple[float, ...]:
    """How long each rank takes."""
    random = Random(0)
    return tuple(
        {
            "last +50 %": 1.5 if rank == ranks - 1 else 1.0,
            "random": 1 + random.uniform(-0.2, 0.2),
            "ramp": 0.8 + 0.4 * rank / (ranks - 1),
            "half 0.6": 0.6 if rank >= ranks / 2 else 1.0,
        }[profile]
        for rank in range(ranks)
    )


def found(of: Instance, given: argparse.Namespace, *, seed: int, kept: float) -> tuple[Plan, float]:
    """A plan, and the CPU seconds it took."""
    begun = process_time()
    answer = plan(
        num_ranks=of.size[0],
        num_microbatches=of.size[1],
        costs=of.costs(kept=kept),
        memory=of.memory * of.size[0] * HELD,
        stages_per_rank=of.stages_per_rank,
        shapes=of.shapes,
        objective=of.objective,  # type: ignore[arg-type]
        effort=given.effort,
        deadline=given.deadline,
        seed=seed,
    )
    return answer, process_time() - begun


def row(of: Instance, given: argparse.Namespace) -> tuple[list[str], bool]:
    """One row of the table, and whether all seeds meet the target."""
    answers = [found(of, given, seed=seed, kept=KEPT) for seed in given.seeds]
    plans = [answer for answer, _ in answers]
    reached = [of.value(answer) for answer in plans]
    until_w = ["-", "-"]
    if given.until_w:
        other, _ = found(of, given, seed=given.seeds[0], kept=HELD)
        until_w = [f"{of.bound(other):.4f}", f"{of.value(other):.4f}"]
    is_met = max(reached) <= of.goal
    cells = [
        *(of.label, f"{of.objective} {of.measure}", f"{of.bound(plans[0]):.4f}", of.elsewhere),
        *(
            f"{of.goal:.4f}",
            " ".join(f"{value:.4f}" for value in reached),
            "yes" if is_met else "no",
        ),
        *until_w,
        plans[0].best.schedule.name,
        " ".join(str(answer.effort) for answer in plans),
        f"{max(answer.seconds for answer in plans):.1f}",
        f"{max(seconds for _, seconds in answers):.1f}",
    ]
    return cells, is_met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deadline", type=float, default=10.0, help="seconds an instance")
    parser.add_argument("--effort", type=int, default=5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", default="", help="a part of an instance's name")
    parser.add_argument(
        "--until-w", action="store_true", help="also plan with everything held until W"
    )
    given = parser.parse_args()
    print(*provenance(), sep="\n\n", end="\n\n")
    warm_up()
    rows, met = [], 0
    for of in instances():
        if given.only not in of.label:
            continue
        cells, is_met = row(of, given)
        rows.append(cells)
        met += is_met
        print(cells, flush=True)
    head = ["instance", "measure", "bound", "elsewhere", "target", "reached", "met"]
    head += ["bound until W", "until W", "schedule", "effort", "seconds", "CPU seconds"]
    print("\n" + table(head, rows))
    print(f"\n{met} of {len(rows)} targets met")


if __name__ == "__main__":
    main()
