"""The exact optimum of small instances, by OR-Tools' CP-SAT solver."""

from dataclasses import dataclass
from math import inf

from ortools.sat.python import cp_model

from fullbore.plan import Instance

KINDS = "FIW"
_UNITS = 1000  # of the solver's whole numbers in one of the instance's, where these are not whole


@dataclass(frozen=True)
class Optimum:
    """What the solver found.

    Attributes:
        makespan: the shortest that it found.
        bound: what no schedule beats, by its proof.
        is_proved: whether both are the same.
    """

    makespan: float
    bound: float
    is_proved: bool


def optimum(of: Instance, *, seconds: float, most: float) -> Optimum:
    """The least makespan of an instance: every F, I and W has a start, a rank runs one at a time
    and holds no more than its capacity, and a stage takes microbatches in order.

    Microbatches are alike, so nothing is lost by the order (exchange two that are not). Memory is
    held from the start of F to the end of I, and what W needs from there to the end of W, as in the
    simulator.

    Args:
        of: the instance; times are rounded to a thousandth.
        seconds: after which the solver gives up.
        most: the least makespan is no more than that.
    """
    model = cp_model.CpModel()
    times = {"F": of.F, "I": of.I, "W": of.W}
    numbers = [*of.F, *of.I, *of.W, *of.down, *of.up]
    unit = 1 if all(float(number).is_integer() for number in numbers) else _UNITS

    def units(time: float) -> int:
        return round(time * unit)

    horizon = units(most)
    stages, microbatches = range(of.placement.num_stages), range(of.num_microbatches)
    start = {
        (kind, s, k): model.new_int_var(0, horizon, f"{kind}{s}.{k}")
        for kind in KINDS
        for s in stages
        for k in microbatches
    }
    length = {(kind, s): units(times[kind][s]) for kind in KINDS for s in stages}
    end = {key: start[key] + length[key[:2]] for key in start}
    makespan = model.new_int_var(0, horizon, "makespan")
    for _, s, k in (key for key in start if key[0] == "F"):
        _flow(model, (s, k), start, end, [*map(units, of.down)], [*map(units, of.up)])
        model.add(makespan >= end["W", s, k])
    for rank in range(of.placement.num_ranks):
        _rank(model, of, rank, start, end, length)
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 2
    solver.parameters.random_seed = 1
    status = solver.solve(model)
    return Optimum(
        solver.objective_value / unit,
        solver.best_objective_bound / unit,
        status == cp_model.OPTIMAL,
    )


def _flow(model, place, start, end, down, up):
    """What a stage and microbatch wait for."""
    s, k = place
    if s:
        model.add(start["F", s, k] >= end["F", s - 1, k] + down[s - 1])
    if s + 1 < len(down):
        model.add(start["I", s, k] >= end["I", s + 1, k] + up[s])
    model.add(start["I", s, k] >= end["F", s, k])
    model.add(start["W", s, k] >= end["I", s, k])
    for kind in KINDS if k else "":
        model.add(start[kind, s, k] >= end[kind, s, k - 1])


def _rank(model, of, rank, start, end, length):
    """One action at a time, and no more than the capacity."""
    mine = [key for key in start if of.placement.ranks[key[1]] == rank]
    model.add_no_overlap(
        model.new_fixed_size_interval_var(start[key], length[key[:2]], f"{key}") for key in mine
    )
    if of.capacity[rank] == inf:
        return
    held, demands = [], []
    for _, s, k in (key for key in mine if key[0] == "F"):
        phases = [("F", "I", of.held[s], end["I", s, k]), ("I", "W", of.kept[s], end["W", s, k])]
        for first, last, amount, until in phases:
            begun = start["F", s, k] if first == "F" else end["I", s, k]
            span = model.new_int_var(0, 10**9, "")
            held.append(model.new_interval_var(begun, span, until, f"{first}{last}{s}.{k}"))
            demands.append(round(amount))
    model.add_cumulative(held, demands, round(of.capacity[rank]))
