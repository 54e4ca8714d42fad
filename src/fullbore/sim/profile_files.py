"""Profiles as JSON files, with a version; and those that torch's profiler wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fullbore.errors import FormatError, ParameterError
from fullbore.formats import dumps, loads, parse_action
from fullbore.formats.fields import decode, wrong
from fullbore.ir import Action, Schedule
from fullbore.sim.profile import Profile, Sample, Step

VERSION = 1
_KEY = "fullbore_profile"
_DIGITS = 9


def save_profile(profile: Profile, path: str | Path) -> None:
    """Write a profile to a file that :func:`load_profile` reads.

    Raises:
        OSError: the file cannot be written.
    """
    steps = [[[_row(sample) for sample in rank] for rank in step] for step in profile.steps]
    head = json.dumps(
        {_KEY: VERSION, "schedule": json.loads(dumps(profile.schedule, format="json"))}
    )
    body = ",\n".join(json.dumps(step, separators=(",", ":")) for step in steps)
    Path(path).write_text(f'{head[:-1]}, "steps": [\n{body}\n]}}\n', "utf-8")


def load_profile(path: str | Path) -> Profile:
    """The profile in a file.

    Raises:
        FormatError: the file cannot be read, or holds something else than it should.
    """
    data = _decoded(path)
    try:
        if not isinstance(data, dict):
            raise wrong("the document", data, "an object")
        version = data.get(_KEY)
        if type(version) is not int or version != VERSION:
            raise wrong(_KEY, version, f"{VERSION}, the version of this format")
        schedule = loads(json.dumps(data.get("schedule")), format="json")
        steps = data.get("steps")
        if not isinstance(steps, list):
            raise wrong("steps", steps, "a list of steps")
        return Profile(schedule, tuple(_step(step) for step in steps))
    except FormatError as error:
        raise error.at(file=str(path)) from error
    except ParameterError as error:
        raise FormatError(str(error), file=str(path)) from error


def load_torch_traces(paths: Sequence[str | Path], schedule: Schedule) -> Profile:
    """A profile of what torch's profiler wrote: a Chrome trace for each rank, in rank order, of
    steps whose actions are ranges called ``PP:`` and their text, or their text alone. fullbore and
    PyTorch label their actions so.

    A range tells when an action ran, and not what it waited for: ``ready`` is its start. A step
    ends where an action comes again.

    Raises:
        FormatError: a file cannot be read or holds no such range, or the ranks did not run the same
            number of steps.
        ParameterError: there are not as many files as the schedule has ranks.
    """
    if len(paths) != schedule.num_ranks:
        raise ParameterError(f"one trace a rank is needed, {schedule.num_ranks}; got {len(paths)}")
    by_rank = [list(_cut(_ranges(path), str(path))) for path in paths]
    counts = {len(steps) for steps in by_rank}
    if len(counts) > 1:
        shown = ", ".join(f"{path}: {len(s)}" for path, s in zip(paths, by_rank, strict=True))
        raise FormatError(f"the ranks ran different numbers of steps: {shown}")
    return Profile(schedule, tuple(zip(*by_rank, strict=True)))


def _row(sample: Sample) -> list[Any]:
    start, ready, end, after = (
        round(time, _DIGITS) for time in (sample.start, sample.ready, sample.end, sample.after)
    )
    more = [sample.size, after] if after else [sample.size] if sample.size else []
    return [str(sample.action), start, ready, end, *more]


def _step(value: Any) -> Step:
    if not isinstance(value, list) or not all(isinstance(rank, list) for rank in value):
        raise wrong("a step", value, "a list of samples for each rank")
    return tuple(tuple(_sample(row) for row in rank) for rank in value)


def _sample(row: Any) -> Sample:
    is_row = isinstance(row, list) and len(row) in (4, 5, 6) and isinstance(row[0], str)
    if not is_row or not all(
        isinstance(n, int | float) and not isinstance(n, bool) for n in row[1:]
    ):
        raise wrong(
            "a sample", row, "[action, start, ready, end], perhaps with bytes and time after"
        )
    return Sample(parse_action(row[0]), *row[1:])


def _decoded(path: str | Path) -> Any:
    try:
        return decode(Path(path).read_text("utf-8"))
    except FormatError as error:
        raise error.at(file=str(path)) from error
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise FormatError(f"cannot be read: {reason}", file=str(path)) from error


def _ranges(path: str | Path) -> list[Sample]:
    data = _decoded(path)
    events = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(events, list):
        raise FormatError("no trace: it has no traceEvents", file=str(path))
    found = []
    for event in events:
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        action = _action(str(event.get("name", "")))
        # On a GPU the range is there twice: where it was issued, and around its kernels.
        if action is None or event.get("cat") == "gpu_user_annotation":
            continue
        start, length = float(event["ts"]) / 1e6, float(event["dur"]) / 1e6
        found.append(Sample(action, start, start, start + length))
    if not found:
        raise FormatError('no range is called like an action, "PP:2F0" or "2F0"', file=str(path))
    return sorted(found, key=lambda sample: sample.start)


def _action(name: str) -> Action | None:
    try:
        return parse_action(name.removeprefix("PP:"))
    except FormatError:
        return None


def _cut(samples: list[Sample], file: str) -> Iterator[tuple[Sample, ...]]:
    seen: set[Action] = set()
    step: list[Sample] = []
    for sample in samples:
        if sample.action in seen:
            yield tuple(step)
            seen, step = set(), []
        seen.add(sample.action)
        step.append(sample)
    yield tuple(step)
