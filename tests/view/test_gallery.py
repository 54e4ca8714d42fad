"""The gallery in the documentation is what fullbore draws: ``--update-golden`` renews it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.goldens import Golden

from fullbore.schedules import FAMILIES, build
from fullbore.view import Panel, render_figure, simulated
from fullbore.view.panel import caption

DOCS = Path(__file__).parents[2] / "docs"
NUM_RANKS, NUM_MICROBATCHES = 4, 8

HEAD = f"""\
# Gallery

Every family with {NUM_RANKS} ranks and {NUM_MICROBATCHES} microbatches, at unit costs: a forward,
an input gradient and a weight gradient of one stage take one unit of time, a full backward two,
messages none. Under each rank's lane is the memory that it holds, in activations of one microbatch.
[Pictures](pictures.md) tells how to draw your own.

Generated: `.venv/bin/pytest tests/view/test_gallery.py --update-golden`.
"""


def panel_of(name: str) -> Panel:
    return simulated(build(name, num_ranks=NUM_RANKS, num_microbatches=NUM_MICROBATCHES))


def page() -> Iterator[str]:
    yield HEAD
    for name, family in FAMILIES.items():
        command = (
            f"fullbore show {name} -p {NUM_RANKS} -m {NUM_MICROBATCHES} -o {name}.svg --memory"
        )
        description = family.description[0].upper() + family.description[1:]
        yield f"## {name}\n\n{description}. Source: {family.source}.\n"
        yield f"![{name} over time: {caption(panel_of(name))}](gallery/{name}.svg)\n"
        yield f"`{command}`\n"


@pytest.fixture
def docs(request: pytest.FixtureRequest) -> Golden:
    return Golden(DOCS, update=request.config.getoption("--update-golden"))


def test_the_page_names_every_family(docs: Golden):
    docs("gallery.md", "\n".join(page()))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_pictures_are_right_and_small(docs: Golden, name: str):
    picture = render_figure([panel_of(name)], memory=True)
    assert len(picture) < 60_000
    docs(f"gallery/{name}.svg", picture.decode())


def test_there_is_no_other_picture():
    assert {path.stem for path in (DOCS / "gallery").iterdir()} == set(FAMILIES)
