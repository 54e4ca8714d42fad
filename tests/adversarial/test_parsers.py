"""Whatever a file holds, reading it gives a schedule or a FormatError, in bounded memory."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from tests.adversarial.budget import budget
from tests.adversarial.draws import valid

from fullbore.errors import FormatError
from fullbore.formats import DIALECTS, FORMATS, dumps, format_action, load, loads, parse_action
from fullbore.ir import Schedule
from fullbore.verify import verify

pytestmark = pytest.mark.slow

READERS = [(name, dialect) for name in ("csv", "txt") for dialect in DIALECTS] + [("json", "torch")]
readers = st.sampled_from(READERS)
near = st.text(st.sampled_from("0123456789FBIW_()SENDRCVUH;,\"'\n\r\t {}[]:#rankfullbore.eE+-²٣\0"))
texts = st.one_of(near, st.text(), st.lists(near, max_size=8).map(",".join))


def read(text: str, name: str, dialect: str) -> None:
    """The text is a schedule, which can be judged and written, or refused."""
    found = loaded(text, name, dialect)
    if isinstance(found, Schedule):
        event("read")
        assert all(len(str(finding)) < 100_000 for finding in verify(found))
        assert loads(dumps(found, format="json"), format="json") == found
        return
    event("refused")
    assert str(found).startswith("fuzzed")
    assert len(str(found)) < 1000
    assert found.row is None or 1 <= found.row <= text.count("\n") + text.count("\r") + 1
    assert found.column is None or 1 <= found.column <= len(text) + 1


def loaded(text: str, name: str, dialect: str = "torch") -> Schedule | FormatError:
    try:
        return loads(text, format=name, dialect=dialect, file="fuzzed")
    except FormatError as error:
        return error


@budget()
@given(texts, readers)
@example("\ufeff", ("csv", "torch"))
@example("0F0\x00", ("csv", "torch"))
@example("[" * 100_000, ("json", "torch"))
@example('{"a":' * 100_000, ("json", "torch"))
@example("1" * 100_000, ("json", "torch"))
@example('{"fullbore": NaN, "programs": {}}', ("json", "torch"))
@example('{"fullbore": 1e400, "programs": {}}', ("json", "torch"))
@example('{"fullbore": 1, "fullbore": 1, "programs": {"0": ["0F0"]}}', ("json", "torch"))
@example('{"fullbore": 1, "programs": {"0": ["0F0"], "0": ["0F0"]}}', ("json", "torch"))
@example('{"fullbore": 1, "placement": [1e9], "programs": {"0": ["0F0"]}}', ("json", "torch"))
@example('{"fullbore": 1, "placement": [999999999], "programs": {"0": ["0F0"]}}', ("json", "torch"))
@example(
    '{"fullbore": 1, "num_microbatches": 1' + "0" * 999 + ', "programs": {"0": ["0F0"]}}',
    ("json", "torch"),
)
@example('{"fullbore": 1, "name": "\\ud800", "programs": {"0": ["0F0"]}}', ("json", "torch"))
@example("# num_microbatches: 1" + "0" * 999 + "\nrank 0: 0F0", ("txt", "torch"))
@example("# placement: " + "[" * 100_000 + "\nrank 0: 0F0", ("txt", "torch"))
@example("# name: \ud800\nrank 0: 0F0", ("txt", "torch"))
@example("rank 0: " + "0F0 " * 50_000, ("txt", "torch"))
@example("0F0," * 50_000, ("csv", "torch"))
@example("(" * 100_000, ("csv", "torch"))
@example("(0F0;" * 50_000 + ")OVERLAP_F_B", ("csv", "torch"))
@example("999999999F999999999", ("csv", "torch"))
@example("0F999999999,0B999999999", ("csv", "monarch"))
def test_any_text(text: str, reader: tuple[str, str]) -> None:
    read(text, *reader)


@budget()
@given(st.binary(), st.sampled_from(sorted(FORMATS)))
@example("0F0,0B0\n".encode("utf-16"), "csv")
@example("0F0,0B0\n".encode("utf-8-sig"), "csv")
@example("Größe".encode("latin-1"), "txt")
@example(b"\xed\xa0\x80", "json")
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str) -> None:
    path = tmp_path_factory.getbasetemp() / f"fuzzed.{name}"
    path.write_bytes(content)
    with suppress(FormatError):
        load(path)


@budget()
@given(st.randoms(use_true_random=True), readers)
def test_a_valid_file_after_some_changes(random: Random, reader: tuple[str, str]) -> None:
    name, dialect = reader
    plan = valid(random)
    try:
        text = dumps(plan, format=name, dialect=dialect)
    except FormatError:
        text = dumps(plan, format="json")
    for _ in range(random.randint(1, 3)):
        text = random.choice((cut, copy, put, exchange))(random, text)
    read(text, name, dialect)


def cut(random: Random, text: str) -> str:
    start = random.randrange(len(text) + 1)
    return text[:start] + text[start + random.randint(1, 9) :]


def copy(random: Random, text: str) -> str:
    """A piece of it once more, somewhere else."""
    start, where = (random.randrange(len(text) + 1) for _ in range(2))
    return text[:where] + text[start : start + random.randint(1, 99)] + text[where:]


def put(random: Random, text: str) -> str:
    where = random.randrange(len(text) + 1)
    return text[:where] + random.choice(PIECES) + text[where:]


PIECES = (
    *(",", "\n", "\r\n", ";", '"', "'", "\t", "\0", "\ufeff", "#", "{", "}", "[", "]", "(", ")"),
    *("-1", "1e5", "NaN", "Infinity", "null", "true", "9" * 30, "0F0", "0B0", "0I0", "5W1", "F"),
    *("_rs", "UNSHARD", "0REDUCE_GRAD", "(0F1;0B0)OVERLAP_F_B", "rank 0:", "# form: lowered\n"),
    *('"programs": {}', '"form": "lowered",', '"fullbore": 2,', "²", "٣", "\u2028", "é"),
)


def exchange(random: Random, text: str) -> str:
    """One character for another of the same text."""
    where = random.randrange(len(text)) if text else 0
    return text[:where] + (random.choice(text) if text else "0") + text[where + 1 :]


@budget()
@given(near, st.sampled_from(sorted(DIALECTS)))
def test_any_action(text: str, dialect: str) -> None:
    try:
        action = parse_action(text, dialect=dialect)
    except FormatError:
        return
    assert parse_action(format_action(action, dialect=dialect), dialect=dialect) == action


LONG = 40_000
HUGE = {
    "many cells": ("csv", "0F0," * LONG),
    "many rows": ("csv", "0F0\n" * LONG),
    "one long cell": ("csv", "0F" + "1" * LONG * 4),
    "an open quote": ("csv", '"' + "0F0," * LONG),
    "parentheses": ("csv", "(" * LONG * 4),
    "many parts": ("csv", "(" + "0F0;" * LONG + "0B0)OVERLAP_F_B"),
    "many microbatches": ("csv", "0F999999999,0B999999999"),
    "many stages": ("csv", "999999999F0"),
    "nesting": ("json", "[" * LONG * 4),
    "a long number": ("json", "1" * LONG * 4),
    "a long string": ("json", '"' + "x" * LONG * 4),
    "many keys": ("json", json.dumps({str(key): key for key in range(LONG)})),
    "a long header": ("txt", "# name: " + "x" * LONG * 4),
    "many headers": ("txt", "# note\n" * LONG),
    "blanks": ("txt", "rank 0: " + " " * LONG * 4),
    "blank lines": ("txt", "\n" * LONG * 4),
}


@pytest.mark.parametrize("what", HUGE)
def test_large_input_takes_memory_in_proportion(what: str, tmp_path: Path) -> None:
    name, text = HUGE[what]
    tracemalloc.start()
    try:
        found = loaded(text, name)
        if isinstance(found, Schedule):
            verify(found)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000 + 100 * len(text)
