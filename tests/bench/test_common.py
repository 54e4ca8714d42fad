"""What the benchmarks report, from given measurements."""

import math

import pytest
from bench.common import Sample, machine_seconds, provenance, ratios, table

pytestmark = pytest.mark.torch


def test_a_sample_is_told_by_median_and_quartiles():
    assert Sample([4.0, 1.0, 3.0, 2.0, 5.0]).text(1) == "3.0 [2.0-4.0]"
    assert Sample([2.0]).text(1) == "2.0 [2.0-2.0]"


def test_no_measurements_are_no_number():
    assert Sample().text() == "-"
    assert math.isnan(Sample().median)


def test_ratios_are_those_of_each_repetition():
    assert ratios([1.0, 9.0], [2.0, 3.0]) == [0.5, 3.0]


def test_table_is_markdown():
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_work_of_this_process_counts_as_the_machines():
    before = machine_seconds()
    while machine_seconds() == before:
        pass


def test_provenance_names_the_command(monkeypatch):
    monkeypatch.setattr("sys.argv", ["bench/compile.py", "--repetitions", "3"])
    *_, command = provenance()
    assert command == "`python -m bench.compile --repetitions 3`"
