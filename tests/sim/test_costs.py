"""Cost models, and costs as files."""

import json
from pathlib import Path

import pytest

from fullbore.errors import FormatError, ParameterError
from fullbore.ir import Placement
from fullbore.sim import TableCosts, UniformCosts, dump_costs, load_costs, parse_costs, save_costs

LOOP = Placement.loop(2, 2)


def test_a_rank_shares_its_costs_among_its_stages():
    table = UniformCosts(F=4, I=2, W=6, latency=0.5, activation_bytes=8, overlap=10).table(LOOP)
    assert [*table.F, *table.I, *table.W, *table.B] == [2] * 4 + [1] * 4 + [3] * 4 + [4] * 4
    assert [*table.activation_bytes, *table.kept_bytes] == [4] * 8
    assert list(table.link((0, 1))) == [0.5, 0]
    assert table.block(0, 3) == 5


def test_stages_of_ranks_with_different_numbers_of_stages():
    table = UniformCosts(F=6, I=6, W=6).table(Placement((0, 1, 1, 1)))
    assert list(table.F) == [6, 2, 2, 2]


def test_a_number_serves_all_stages_and_a_list_one_each():
    table = TableCosts(F=[1, 2, 3, 4], I=1, W=0.5, B=9, kept_bytes=3).table(LOOP)
    assert [*table.F, *table.B, *table.kept_bytes] == [1, 2, 3, 4] + [9] * 4 + [3] * 4


def test_links_and_overlaps_by_pair():
    costs = TableCosts(
        F=1, I=1, W=1, latency={(0, 1): 2}, bandwidth={(1, 0): 4}, overlap={(0, 3): 7}
    )
    table = costs.table(LOOP)
    assert [*table.link((0, 1)), *table.link((1, 0))] == [2, 0, 0, 0.25]
    assert (table.block(0, 3), table.block(3, 0)) == (7, None)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"F": -1}, "F must be a number of 0 or more, got -1"),
        ({"I": [1, float("nan")]}, "I must be a number of 0 or more, got nan"),
        ({"W": "3"}, "W must be a number of 0 or more, got '3'"),
        ({"W": True}, "got True"),
        ({"F": None}, "F must be a number of 0 or more, got None"),
        ({"latency": {(0, 1): -2}}, "latency must be a number of 0 or more, got -2"),
        ({"bandwidth": 0}, "bandwidth must be more than 0"),
        ({"bandwidth": 1e-320}, "bandwidth must be more than 0, 1e-100 at least; got 1e-320"),
        ({"F": [1e308, 1]}, "F must be 1e+100 at most, got 1e+308"),
        ({"activation_bytes": 1e200}, "activation_bytes must be 1e+100 at most"),
        ({"F": [1, 2], "I": [1, 2, 3]}, "one number a stage is needed everywhere"),
    ],
)
def test_bad_costs(wrong: dict, message: str):
    with pytest.raises(ParameterError) as caught:
        TableCosts(**{"F": 1, "I": 1, "W": 1, **wrong})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "costs", [TableCosts(F=[1, 2], I=1, W=1), TableCosts(F=1, I=1, W=1, recompute={4})]
)
def test_costs_that_do_not_fit_the_placement(costs: TableCosts):
    with pytest.raises(ParameterError, match=r"2 numbers for 4 stages|names stage 4"):
        costs.table(LOOP)


@pytest.mark.parametrize(
    ("text", "latency"), [("1,2,3", 0), ("1,2,3,0.5", 0.5), (" 1 , 2,3", 0), ("1e0,2,3", 0)]
)
def test_costs_in_a_word(text: str, latency: float):
    assert parse_costs(text) == UniformCosts(F=1, I=2, W=3, latency=latency)


@pytest.mark.parametrize("text", ["", "1,2", "1,2,3,4,5", "a,b,c", "1;2;3", "1,2,-3", "1,2,nan"])
def test_what_are_no_costs(text: str):
    with pytest.raises(ParameterError, match="costs"):
        parse_costs(text)


def test_a_file_holds_all_of_it(tmp_path: Path):
    costs = TableCosts(
        F=[1, 2],
        I=1.5,
        W=[0.25, 1],
        overlap={(0, 1): 3},
        latency={(0, 1): 0.5, (1, 0): 0.25},
        bandwidth=1e9,
        message_bytes=4,
        recompute=frozenset({1}),
        unit="ms",
    )
    save_costs(costs, tmp_path / "costs.json")
    assert load_costs(tmp_path / "costs.json") == costs
    assert "kept_bytes" not in dump_costs(costs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fullbore_costs": 2}, "1, the version of this format"),
        ({"fullbore_costs": None}, "1, the version of this format"),
        ({"G": 1}, "unknown key 'G'"),
        ({"F": ...}, "a key is missing: 'F'"),
        ({"F": "x"}, "F must be a number of 0 or more, got 'x'"),
        ({"F": [[1]]}, "F must be a number of 0 or more"),
        ({"unit": 3}, "unit: not '3'; expected a string"),
        ({"latency": [[0, 1]]}, "a list of [first, second, number]"),
        ({"latency": [[0.5, 1, 2]]}, "a list of [first, second, number]"),
        ({"recompute": 3}, "a list of stages"),
    ],
)
def test_bad_files(tmp_path: Path, change: dict, message: str):
    data = {"fullbore_costs": 1, "F": 1, "I": 1, "W": 1, **change}
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not ...}))
    with pytest.raises(FormatError) as caught:
        load_costs(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["[1]", "{", "NaN", '{"F": 1, "F": 2}', "1" * 9999])
def test_what_is_no_costs_file(tmp_path: Path, text: str):
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=r"costs\.json"):
        load_costs(path)


def test_a_file_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(FormatError, match="No such file"):
        load_costs(tmp_path / "none.json")
    (tmp_path / "costs.json").write_bytes(b"\xff\xfe")
    with pytest.raises(FormatError, match="not UTF-8"):
        load_costs(tmp_path / "costs.json")
