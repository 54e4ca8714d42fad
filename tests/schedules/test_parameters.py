"""Names and parameters: what is accepted, and what the errors say."""

from fractions import Fraction
from typing import Any

import pytest

from fullbore.errors import ParameterError
from fullbore.ir import Placement, executable_order
from fullbore.schedules import FAMILIES, build, find, resolve

TORCH_NAMES = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "LoopedBFS": "looped_bfs",
    "Interleaved1F1B": "interleaved_1f1b",
    "InterleavedZeroBubble": "interleaved_zero_bubble",
    "ZBVZeroBubble": "zbv_zero_bubble",
    "DualPipeV": "dualpipev",
}
OTHERS = (
    *("zb_h1", "zb_h2", "zb", "zbv_greedy", "gis", "v_half", "v_min"),
    *("dora", "dora_dfs"),
)


@pytest.mark.parametrize(("torch_name", "name"), TORCH_NAMES.items())
def test_torch_names(torch_name: str, name: str):
    spellings = (torch_name, torch_name.lower(), torch_name.upper(), f"Schedule{torch_name}", name)
    assert {resolve(spelling) for spelling in spellings} == {name}
    assert torch_name in FAMILIES[name].aliases


def test_other_names():
    assert resolve("zbv") == resolve("ZBV") == resolve("zbv-zero-bubble") == "zbv_zero_bubble"
    assert resolve("_ScheduleForwardOnly") == "forward_only"
    assert resolve("dora-dfs") == "dora_dfs"


def test_the_table():
    assert list(FAMILIES) == [*TORCH_NAMES.values(), *OTHERS, "forward_only"]
    assert not any(FAMILIES[name].aliases for name in OTHERS)
    assert all(family.description and family.source for family in FAMILIES.values())


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ParameterError, match=r"no family 'gpip'\. Choose one of gpipe, 1f1b, .*"):
        build("gpip", num_ranks=2, num_microbatches=2)


@pytest.mark.parametrize(
    ("name", "shape", "default", "fixed"),
    [
        ("gpipe", "linear", 1, True),
        ("1f1b", "linear", 1, True),
        ("looped_bfs", "loop", 2, False),
        ("interleaved_1f1b", "loop", 2, False),
        ("interleaved_zero_bubble", "loop", 2, False),
        ("zbv_zero_bubble", "vee", 2, True),
        ("dualpipev", "vee", 2, True),
        ("zb_h1", "linear", 1, True),
        ("zb_h2", "linear", 1, True),
        ("gis", "loop", 2, False),
        ("zb", "linear", 1, True),
        ("zbv_greedy", "vee", 2, True),
        ("v_half", "vee", 2, True),
        ("v_min", "vee", 2, True),
        ("dora", "loop", 2, False),
        ("dora_dfs", "loop", 2, False),
        ("forward_only", "linear", 1, False),
    ],
)
def test_default_placement(name: str, shape: str, default: int, fixed: bool):
    schedule = build(name, num_ranks=3, num_microbatches=6)
    assert schedule.placement.shape == shape
    assert find(name).default_stages_per_rank == default
    assert find(name).fixed_stages_per_rank == fixed


def test_a_schedule_says_where_it_comes_from():
    schedule = build("Interleaved1F1B", num_ranks=2, num_microbatches=5, stages_per_rank=3)
    assert schedule.name == "interleaved_1f1b"
    assert dict(schedule.parameters) == {
        "num_ranks": 2,
        "num_microbatches": 5,
        "stages_per_rank": 3,
    }
    custom = build(
        "forward_only", num_ranks=2, num_microbatches=5, placement=Placement((0, 1, 0, 1, 1))
    )
    assert dict(custom.parameters) == {"num_ranks": 2, "num_microbatches": 5}


def test_options_are_recorded():
    cases: list[tuple[str, dict[str, Any]]]
    cases = [
        ("interleaved_1f1b", {"round_size": 5}),
        ("gis", {"group_size": 2}),
        ("zb", {"limit": 2}),
        ("zbv_greedy", {"limit": 2}),
    ]
    for name, options in cases:
        chosen = build(name, num_ranks=3, num_microbatches=8, **options)
        assert chosen != build(name, num_ranks=3, num_microbatches=8)
        assert dict(chosen.parameters).items() >= options.items()
        assert [*find(name).options] == [*options]


def test_the_default_options():
    size: dict[str, Any] = {"num_ranks": 4, "num_microbatches": 10}
    assert build("gis", **size) == build("gis", **size, group_size=4)
    assert build("interleaved_1f1b", **size) == build("interleaved_1f1b", **size, round_size=4)


@pytest.mark.parametrize("name", ["interleaved_1f1b", "gis"])
@pytest.mark.parametrize("stages_per_rank", [1, 2, 3])
def test_every_option_can_run(name: str, stages_per_rank: int):
    for num_ranks in range(1, 6):
        least = num_ranks if name == "interleaved_1f1b" else (num_ranks + 1) // 2
        most = 2 * num_ranks if name == "interleaved_1f1b" else num_ranks
        for size in range(least, most + 1):
            option: dict[str, Any] = {next(iter(find(name).options)): size}
            for microbatches in range(1, 14):
                schedule = build(
                    name,
                    num_ranks=num_ranks,
                    num_microbatches=microbatches,
                    stages_per_rank=stages_per_rank,
                    **option,
                )
                assert not executable_order(schedule).blocked


def test_the_own_placement_may_be_given():
    for name, placement in [
        ("1f1b", Placement.linear(3)),
        ("looped_bfs", Placement.loop(3, 2)),
        ("dualpipev", Placement.vee(3)),
    ]:
        with_it = build(name, num_ranks=3, num_microbatches=6, placement=placement)
        assert with_it == build(name, num_ranks=3, num_microbatches=6)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("1f1b", {"num_ranks": 0}, "1f1b: num_ranks must be at least 1; got 0"),
        ("zbv", {"num_microbatches": 0}, "zbv_zero_bubble: num_microbatches must be at least 1; "),
        ("looped_bfs", {"stages_per_rank": -1}, "looped_bfs: stages_per_rank must be at least 1; "),
        (
            "gpipe",
            {"num_microbatches": 4.0},
            "gpipe: num_microbatches must be a whole number; got 4.0. Divide with //",
        ),
        ("gpipe", {"num_ranks": Fraction(2)}, "gpipe: num_ranks must be a whole number; got"),
        (
            "1f1b",
            {"stages_per_rank": 3},
            "1f1b: stages_per_rank must be 1; got 3. Use interleaved_1f1b for another number",
        ),
        (
            "DualPipeV",
            {"stages_per_rank": 1},
            "dualpipev: stages_per_rank must be 2; got 1. Use interleaved_zero_bubble for another",
        ),
        (
            "zbv",
            {"placement": Placement.loop(2, 2)},
            "zbv_zero_bubble: placement must be the vee (0, 1, 1, 0) for num_ranks=2 and "
            "stages_per_rank=2; got (0, 1, 0, 1). Leave it out",
        ),
        (
            "gpipe",
            {"placement": [0, 1]},
            "gpipe: placement must be a Placement, such as Placement((0, 1, 1, 0)); got [0, 1]",
        ),
        (
            "1f1b",
            {"group_size": 2},
            "1f1b: there is no option 'group_size'; it has these: none",
        ),
        ("gis", {"group_size": 0}, "gis: group_size must be at least 1; got 0"),
        (
            "gis",
            {"group_size": 3},
            "gis: group_size must be from P/2 to P, here 1 to 2; got 3. Use",
        ),
        (
            "interleaved_1f1b",
            {"round_size": 1},
            "interleaved_1f1b: round_size must be at least the number of ranks, 2, or ranks wait",
        ),
        (
            "forward_only",
            {"placement": "loop"},
            "forward_only: placement must be a Placement, such as Placement((0, 1, 1, 0)); got 'lo",
        ),
        (
            "forward_only",
            {"placement": Placement((0, 1, 2))},
            "forward_only: num_ranks must be that of the placement, 3; got 2",
        ),
        (
            "forward_only",
            {"placement": Placement((0, 1, 1)), "stages_per_rank": 1},
            "forward_only: stages_per_rank must agree with the placement; got 1, but rank 1 holds",
        ),
    ],
)
def test_wrong_parameters(name: str, parameters: dict, message: str):
    with pytest.raises(ParameterError) as caught:
        build(name, **{"num_ranks": 2, "num_microbatches": 4, **parameters})
    assert str(caught.value).startswith(message)


def test_numbers_are_given_by_name():
    with pytest.raises(TypeError, match="'num_ranks' and 'num_microbatches'"):
        build("zbv", 2, 4)  # type: ignore[arg-type, call-arg]
    with pytest.raises(ParameterError, match=r"by name: build\('zbv', num_ranks=2"):
        build("zbv", 2, num_ranks=2, num_microbatches=4)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [None, 4, ["gpipe"]])
def test_a_name_is_a_string(name):
    with pytest.raises(ParameterError, match="the name of a family is a string; got"):
        build(name, num_ranks=2, num_microbatches=2)


@pytest.mark.parametrize("name", [*FAMILIES])
@pytest.mark.parametrize("huge", [10**8, 10**30, 10**5000], ids=["8", "30", "5000"])
def test_what_would_fill_the_memory_is_refused_at_once(name: str, huge: int):
    sizes: dict[str, Any] = {"num_ranks": 4, "num_microbatches": 4}
    for parameter in (*sizes, *(() if find(name).fixed_stages_per_rank else ("stages_per_rank",))):
        with pytest.raises(ParameterError, match=f"{parameter} must be at most"):
            build(name, **{**sizes, parameter: huge})


def test_a_schedule_for_a_thousand_ranks_is_no_mistake():
    assert build("1f1b", num_ranks=1024, num_microbatches=8).num_actions == 1024 * 16
