"""Plans as files: schedules for everything else, with costs and proof beside them."""

import json
from pathlib import Path

import pytest

from fullbore.errors import FormatError
from fullbore.formats import load, save
from fullbore.plan import load_plan, plan, save_plan
from fullbore.sim import UniformCosts, simulate

COSTS = UniformCosts(F=3, I=3, W=2, latency=0.5, activation_bytes=2, kept_bytes=1, unit="ms")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = plan(
        num_ranks=2, num_microbatches=4, costs=COSTS, memory=4, stages_per_rank=(2,), effort=1
    )
    save_plan(found, tmp_path / "plan.json", costs=COSTS)
    return tmp_path / "plan.json"


def test_a_plan_is_a_schedule(path: Path):
    schedule, costs, proof = load_plan(path)
    assert load(path) == schedule
    assert simulate(schedule, costs).makespan == pytest.approx(proof["makespan"])
    assert proof["makespan"] / proof["bound"] - 1 == pytest.approx(proof["gap"])
    assert max(proof["peak"]) <= proof["memory"] == 4
    assert (proof["objective"], proof["effort"], proof["stopped"]) == ("makespan", 1, None)
    assert costs.unit == "ms"


@pytest.mark.parametrize("spoil", [{}, {"plan": 3}, {"plan": {"fullbore_plan": 2}}])
def test_what_is_no_plan(path: Path, spoil: dict):
    data = json.loads(path.read_text())
    del data["plan"]
    path.write_text(json.dumps({**data, **spoil}))
    with pytest.raises(FormatError, match=r"plan\.json"):
        load_plan(path)


def test_what_is_no_text(path: Path):
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(FormatError, match=r"plan\.json: not UTF-8 text"):
        load_plan(path)


def test_wrong_costs_are_named(path: Path):
    data = json.loads(path.read_text())
    data["plan"]["costs"]["F"] = -1
    path.write_text(json.dumps(data))
    with pytest.raises(FormatError, match="F must be a number of 0 or more"):
        load_plan(path)


def test_saving_the_schedule_leaves_the_plan_out(path: Path):
    save(load(path), path)
    assert "plan" not in json.loads(path.read_text())
