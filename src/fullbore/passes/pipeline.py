"""Run passes one after another, and read pipelines from text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields

from fullbore.errors import InvalidSchedule, ParameterError, PassError
from fullbore.ir import Schedule
from fullbore.passes.base import Pass
from fullbore.passes.table import PASSES
from fullbore.verify import check

_PASS = re.compile(r"\s*(\w+)\s*(?:\{([^{}]*)\}\s*)?", re.ASCII)
_OPTION = re.compile(r"\s*(\w+)\s*=\s*([\w/-]+)\s*", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]{1,9}")
_NUMBERS = re.compile(r"[0-9]{1,9}(/[0-9]{1,9})*/?")


def run_passes(
    schedule: Schedule, pipeline: str | Sequence[Pass], *, verify_each: bool = False
) -> Schedule:
    """The schedule after all passes, which is valid.

    Args:
        schedule: what to start from; verified first.
        pipeline: passes, or text that ``parse_pipeline`` reads.
        verify_each: verify after every pass, to learn which one is to blame, instead of only after
            the last.

    Raises:
        ParameterError: the text is not a pipeline, or something in the sequence is not a pass.
        InvalidSchedule: the schedule is not valid to begin with.
        PassError: a pass refuses the schedule, or the result is not valid.
    """
    passes = parse_pipeline(pipeline) if isinstance(pipeline, str) else _given(pipeline)
    check(schedule)
    result = schedule
    for count, each in enumerate(passes, 1):
        result = each(result)
        if verify_each or count == len(passes):
            _check_result(result, passes[:count])
    return result


def _given(pipeline: object) -> tuple[Pass, ...]:
    passes = tuple(pipeline) if isinstance(pipeline, Iterable) else (pipeline,)
    for each in passes:
        if not isinstance(each, Pass):
            raise ParameterError(
                f"run_passes: {each!r} is no pass; give a list such as [InsertUnshard()], or text"
            )
    return passes


def parse_pipeline(text: str) -> tuple[Pass, ...]:
    """Passes from text: ``"insert_unshard{max_active_stages=3},insert_communication"``.

    An option's value is a whole number, a word, or several numbers, ``2/3/4`` (one alone: ``2/``).
    Blanks do not matter. An empty text is the empty pipeline.

    Raises:
        ParameterError: the text does not read like that, or names an unknown pass or option.
    """
    passes: list[Pass] = []
    position = 0
    while text.strip():
        match = _PASS.match(text, position)
        end = position if match is None else match.end()
        if match is None or text[end : end + 1] not in ("", ","):
            raise ParameterError(
                f"pipeline: cannot read {text[:200]!r} from column {end + 1} on; "
                "expected passes and commas, as in a,b{option=1},c"
            )
        passes.append(_make(match[1], match[2] or ""))
        position = end + 1
        if end == len(text):
            break
    return tuple(passes)


def _make(name: str, options: str) -> Pass:
    if name not in PASSES:
        raise ParameterError(f"pipeline: there is no pass {name!r}; there are {', '.join(PASSES)}")
    known = [field.name for field in fields(PASSES[name])]
    values: dict[str, object] = {}
    for option in options.split(",") if options.strip() else ():
        match = _OPTION.fullmatch(option)
        if match is None:
            raise ParameterError(f"{name}: {option!r} is not an option; expected option=value")
        if match[1] not in known:
            allowed = f"it has {', '.join(known)}" if known else "it has none"
            raise ParameterError(f"{name}: there is no option {match[1]!r}; {allowed}")
        if match[1] in values:
            raise ParameterError(f"{name}: option {match[1]!r} is given twice")
        values[match[1]] = _value(match[2])
    return PASSES[name](**values)


def _value(text: str) -> int | str | tuple[int, ...]:
    if _NUMBER.fullmatch(text):
        return int(text)
    if _NUMBERS.fullmatch(text):
        return tuple(map(int, text.rstrip("/").split("/")))
    return text


def _check_result(schedule: Schedule, passes: Sequence[Pass]) -> None:
    try:
        check(schedule)
    except InvalidSchedule as error:
        text = ",".join(map(str, passes))
        name = schedule.name or "schedule"
        raise PassError(f"{text} on {name}: the result is wrong: {error}") from error
