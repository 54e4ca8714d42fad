"""Writes down what was measured."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from fullbore.errors import ParameterError
from fullbore.plan import dump_plan
from fullbore.sim import Profile, Report, dump_costs, save_profile
from fullbore.train.footprint import Footprint
from fullbore.train.planner import Replan, costs_of
from fullbore.view import Panel, render_page, render_trace, simulated
from fullbore.view.report import render_report


def write_profile(
    profile: Profile,
    footprints: Mapping[int, Footprint],
    folder: Path,
    *,
    report: Report,
    replan: Replan | None = None,
) -> list[str]:
    """Write the profile, the costs that it shows with what the stages hold, a report, a trace of
    the last step, a page that shows this step beside the prediction, and the plan if there is one.
    Gives the files' names.

    Raises:
        ParameterError: a file cannot be written.
    """
    costs, schedule = costs_of([profile], footprints), profile.schedule
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
    make_folder(folder)
    try:
        for name, write in files.items():
            write(folder / name)
    except OSError as error:
        raise ParameterError(f"--profile {folder}: cannot be written: {error.strerror}") from error
    return list(files)


def make_folder(folder: Path) -> None:
    """Make the folder that a profile goes to, unless it is there.

    Raises:
        ParameterError: it cannot be made, or no file in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except FileExistsError:
        raise ParameterError(f"--profile {folder}: is a file; give the name of a folder") from None
    except OSError as error:
        raise ParameterError(f"--profile {folder}: cannot be written: {error.strerror}") from error
