"""Writes down what was measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fullbore.errors import ParameterError
from fullbore.plan import dump_plan
from fullbore.sim import Profile, Report, dump_costs, save_profile
from fullbore.train.planner import Replan
from fullbore.view import Panel, render_page, render_trace, simulated
from fullbore.view.report import render_report


def write_profile(
    profile: Profile, report: Report, folder: Path, replan: Replan | None = None
) -> list[str]:
    """Write the profile, the costs that it shows, a report, a trace of the last step, a page that
    shows this step beside the prediction, and the plan if there is one. Gives the files' names.

    Raises:
        ParameterError: a file cannot be written.
    """
    costs, schedule = profile.costs(), profile.schedule
    predicted = simulated(schedule, costs, title="predicted")
    measured = Panel("measured", schedule, profile.timeline(), unit="s")
    files: dict[str, Callable[[Path], object]] = {
        "profile.json": lambda path: save_profile(profile, path),
        "costs.json": lambda path: path.write_text(dump_costs(costs), "utf-8"),
        "report.txt": lambda path: path.write_text(
            render_report(report, name=schedule.name), "utf-8"
        ),
        "step.trace.json": lambda path: path.write_text(render_trace(measured), "utf-8"),
        "step.html": lambda path: path.write_text(render_page([measured, predicted]), "utf-8"),
    }
    if replan is not None:
        text = dump_plan(replan.plan, replan.costs)
        files["plan.json"] = lambda path: path.write_text(text, "utf-8")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, write in files.items():
            write(folder / name)
    except OSError as error:
        raise ParameterError(f"--profile {folder}: cannot be written: {error.strerror}") from error
    return list(files)
