"""Plans as JSON files: a schedule that everything else reads, with its costs and proof beside it.

::

    {
      "fullbore": 1,
      ... the schedule ...
      "plan": {
        "fullbore_plan": 1,
        "objective": "makespan",
        "makespan": 401.0,
        "span": 394.5,
        "bound": 400.5,
        "gap": 0.0012,
        "memory": 4.0,
        "peak": [4.0, 4.0, 4.0, 4.0],
        "seed": 0,
        "effort": 4,
        "stopped": null,
        "evaluations": 52072,
        "costs": {"fullbore_costs": 1, "F": [9.0, ...], ...}
      }
    }
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from fullbore.errors import FormatError
from fullbore.formats import dumps, loads
from fullbore.formats.fields import decode, wrong
from fullbore.ir import Placement, Schedule
from fullbore.plan.layers import LayerCosts
from fullbore.plan.search import Plan
from fullbore.sim import Costs, TableCosts, dump_costs, read_costs

VERSION = 1
_KEY = "fullbore_plan"


class PlanFile(NamedTuple):
    """What a plan's file holds.

    Attributes:
        schedule: the best one's.
        costs: what it was planned for, by stage.
        proof: the rest: ``objective``, ``makespan``, ``span``, ``bound`` (of its placement),
            ``gap``, ``memory``, ``peak``, ``seed``, ``effort``, ``stopped``, ``evaluations``;
            and with costs by layer ``layers``, the first of each stage and that after its last.
    """

    schedule: Schedule
    costs: TableCosts
    proof: dict[str, Any]


def dump_plan(found: Plan, costs: Costs) -> str:
    """A plan as JSON text, which also holds the costs that it was made for."""
    best = found.best
    proof = {
        _KEY: VERSION,
        "objective": found.objective,
        "makespan": best.makespan,
        "span": best.span,
        "bound": best.bound,
        "gap": best.gap,
        "memory": found.memory,
        "peak": best.peak,
        "seed": found.seed,
        "effort": found.effort,
        "stopped": found.stopped,
        "evaluations": found.evaluations,
        "costs": json.loads(dump_costs(by_stage(costs, best.placement))),
    }
    if isinstance(costs, LayerCosts):
        stages = costs.split(best.placement).stages
        proof["layers"] = [[stage.start, stage.stop] for stage in stages]
    lines = ",\n".join(f"    {json.dumps(key)}: {json.dumps(proof[key])}" for key in proof)
    schedule = dumps(best.schedule, format="json").rstrip().removesuffix("}").rstrip()
    return f'{schedule},\n  "plan": {{\n{lines}\n  }}\n}}\n'


def save_plan(found: Plan, path: str | Path, *, costs: Costs) -> None:
    """Write a plan to a file that :func:`load_plan` reads, and everything that reads schedules.

    Raises:
        OSError: the file cannot be written.
    """
    Path(path).write_text(dump_plan(found, costs), "utf-8")


def load_plan(path: str | Path) -> PlanFile:
    """The plan in a file.

    Raises:
        FormatError: the file holds no plan.
        OSError: the file cannot be read.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"not UTF-8 text: {error.reason}", file=str(path)) from error
    schedule = loads(text, format="json", file=str(path))
    try:
        data = decode(text)
        proof = data.get("plan") if isinstance(data, dict) else None
        if not isinstance(proof, dict):
            raise wrong("plan", proof, "what fullbore plan writes there")
        version = proof.pop(_KEY, None)
        if type(version) is not int or version != VERSION:
            raise wrong(_KEY, version, f"{VERSION}, the version of this format")
        costs = read_costs(json.dumps(proof.pop("costs", None)))
    except FormatError as error:
        raise error.at(file=str(path)) from error
    return PlanFile(schedule, costs, proof)


def by_stage(costs: Costs, placement: Placement) -> TableCosts:
    """Costs worked out for a placement, as costs again."""
    table = costs.table(placement)
    return TableCosts(**{field.name: getattr(table, field.name) for field in fields(TableCosts)})
