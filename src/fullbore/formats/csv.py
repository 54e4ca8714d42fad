"""CSV: one row a rank, no header, actions only. What PyTorch and TensorPlay read and write."""

from __future__ import annotations

import csv
import io
import re

from fullbore.errors import FormatError
from fullbore.formats.content import Content, differences
from fullbore.formats.dialects import Dialect, read_text, write_program
from fullbore.ir import Action, Program, Schedule

_ACTIONLIKE = re.compile(r"\(|[0-9]+\s*[A-Za-z]|[A-Za-z]{1,2}[0-9]")


def read(text: str, dialect: Dialect) -> Content:
    """The actions of a CSV. Blank cells and blank rows at the end mean nothing.

    Raises:
        FormatError: a cell is no action, a row between ranks is blank, or there is no action.
    """
    programs: list[Program] = []
    blank: int | None = None
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for number, row in enumerate(rows, 1):
            program = _read_row(row, dialect, number=number)
            if program and blank is not None:
                raise FormatError(
                    f"a blank row {'between ranks' if programs else 'before the first rank'}",
                    row=blank,
                    expected=f"the actions of rank {blank - 1}",
                )
            if program:
                programs.append(program)
            elif blank is None:
                blank = number
    except csv.Error as error:
        raise _not_csv(text, error, dialect, row=rows.line_num) from error
    if not programs:
        raise FormatError("no actions", expected="one row for each rank")
    return Content(tuple(programs))


def write(schedule: Schedule, dialect: Dialect) -> str:
    """The actions as CSV.

    Raises:
        FormatError: the dialect has no text for an action, or reading the CSV would give
            another schedule, since a CSV says nothing but the actions.
    """
    empty = [rank for rank, program in enumerate(schedule.programs) if not program]
    lost = f"rank {empty[0]} has no action" if empty else differences(schedule)
    if lost:
        raise FormatError(f"a CSV cannot hold this schedule ({lost}); .json and .txt can")
    rows = (
        write_program(program, dialect, rank=rank) for rank, program in enumerate(schedule.programs)
    )
    return "".join(f"{','.join(row)}\n" for row in rows)


def _not_csv(text: str, error: csv.Error, dialect: Dialect, *, row: int) -> FormatError:
    """The error for a row that csv refuses, with the cell if it is the length of one."""
    line = list(io.StringIO(text, newline=""))[row - 1].rstrip("\r\n")
    limit = csv.field_size_limit()
    for column, cell in enumerate(line.split(","), 1):
        if len(cell) > limit:
            long = FormatError("a cell this long is no action:", text=cell)
            return (_other_separator(cell, dialect) or long).at(row=row, column=column)
    return FormatError(f"not CSV, {error}:", text=line, row=row)


def _read_row(row: list[str], dialect: Dialect, *, number: int) -> Program:
    program: list[Action] = []
    for column, cell in enumerate(row, 1):
        actions = dialect.read(cell)
        if not actions and not (cell := cell.strip()):
            continue
        try:
            program += actions or read_text(cell, dialect)
        except FormatError as error:
            better = _header(row, dialect, number=number) or _other_separator(cell, dialect)
            raise (better or error).at(row=number, column=column) from None
    return tuple(program)


def _other_separator(cell: str, dialect: Dialect) -> FormatError | None:
    """The error for a cell that is many: spreadsheets separate them as is usual in a country."""
    for separator, name in ((";", "';'"), ("\t", "a tab"), (" ", "a blank")):
        parts = [part.strip() for part in cell.split(separator)]
        if len(parts) > 1 and all(dialect.read(part) for part in parts if part):
            return FormatError(
                f"{name} between actions:", text=cell, expected="a comma between cells"
            )
    return None


def _header(row: list[str], dialect: Dialect, *, number: int) -> FormatError | None:
    """The error for a first row, or a first cell, that says what the others mean."""
    cells = [cell for cell in map(str.strip, row) if cell]
    if len(cells) < 2:
        return None
    if number == 1 and not any(_starts_like_an_action(cell) for cell in cells):
        return FormatError(
            "a header:", text=",".join(row), expected="no header; the first row is rank 0"
        )
    if not _starts_like_an_action(cells[0]) and dialect.read(cells[1]):
        return FormatError(
            "a name before the actions:", text=row[0], expected="actions only; row 1 is rank 0"
        )
    return None


def _starts_like_an_action(cell: str) -> bool:
    """Whether this may be an action with a mistake in it: after its stage, or in its parts."""
    return bool(_ACTIONLIKE.match(cell))
