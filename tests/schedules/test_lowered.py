"""The families that PyTorch does not have compute the right thing, with communication too."""

from collections.abc import Iterable

import pytest
from tests.symbolic import reference, run

from fullbore.passes import lower
from fullbore.schedules import FAMILIES, build
from fullbore.verify import verify

NAMES = [name for name, family in FAMILIES.items() if not family.aliases]
OPTIONS = [
    *("zb:limit=1", "zb:limit=3", "zb:limit=99", "zbv_greedy:limit=1", "zbv_greedy:limit=3"),
    *("gis:group_size=4", "interleaved_1f1b:round_size=9"),
]


def wrong(name: str, ranks: Iterable[int], microbatches: Iterable[int]) -> list[tuple[int, int]]:
    """The sizes at which the schedule, or what it is lowered to, has findings or computes anything
    else than a loop over the microbatches."""
    found = []
    for p in ranks:
        for m in microbatches:
            schedule = build(name, num_ranks=p, num_microbatches=m)
            wanted = reference(schedule)
            for form in (schedule, lower(schedule)):
                errors = [finding for finding in verify(form) if finding.severity == "error"]
                if errors or run(form) != wanted:
                    found.append((p, m))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_size_computes_what_a_loop_computes(name: str):
    assert not wrong(name, range(1, 9), range(1, 18))


@pytest.mark.parametrize("name", OPTIONS)
def test_so_it_does_with_options(name: str):
    sizes = (4, 7) if name.startswith("gis") else (1, 2, 5, 8)
    assert not wrong(name, sizes, (1, 4, 10))
