"""docs/compatibility.md has a cell for every family and composition, and every cell has a test."""

from __future__ import annotations

import importlib.util

import pytest
from tests.compositions.page import FAMILIES, FOLDER, PAGE, complaints, compositions, render

import fullbore as fb

pytestmark = pytest.mark.torch

REQUIRED = {
    *("fsdp2", "ddp", "torch_compile", "activation_checkpoint", "reentrant_checkpoint"),
    *("autocast", "grad_scaler", "frozen_and_lora", "tied_weights", "gradient_accumulation"),
    *("evaluation", "dynamic_shapes", "gradient_clipping", "dropout_seeds", "optimizers"),
    *("distributed_checkpoint", "skip_connections"),
}
REFUSED = {"skip_connections"}


def test_the_page_is_complete():
    assert [*complaints(PAGE.read_text("utf-8"))] == []


def test_every_composition_is_tested():
    assert set(compositions()) == REQUIRED
    assert {n for n, (test, _) in compositions().items() if test == "test_refused"} == REFUSED


def test_the_rows_are_the_families():
    """Those that PyTorch has too; the others run the same kinds of work in other orders."""
    assert set(FAMILIES) == {name for name, family in fb.FAMILIES.items() if family.aliases}


@pytest.mark.parametrize("name", sorted(REQUIRED))
def test_every_cell_is_a_test(name: str):
    path = FOLDER / f"test_{name}.py"
    spec = importlib.util.spec_from_file_location(f"cells_of_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (mark,) = [
        mark
        for mark in getattr(module, compositions()[name][0]).pytestmark
        if mark.name == "parametrize"
    ]
    assert set(mark.kwargs.get("ids") or mark.args[1]) == set(FAMILIES)


def outcomes() -> dict[tuple[str, str], str]:
    tests = compositions()
    return {
        (name, family): "works" if tests[name][0] == "test_works" else "refused: too hard"
        for name in tests
        for family in FAMILIES
    }


def test_a_page_that_lacks_something_is_noticed():
    text = render(outcomes())
    assert [*complaints(text)] == []
    for spoilt, message in [
        (text.replace(" works |", " |", 1), "no such|''"),
        (text.replace(" works |", " maybe |", 1), "'maybe'"),
        (text.replace("| `gpipe` |", "| `gpipes` |"), "with gpipe: 'no cell'"),
        (text.replace("| ddp |", "| dpd |", 1), "no column"),
        (text.replace("1. too hard", ""), "no reason"),
        (text.replace("test_ddp.py", "test_dpd.py"), "there is no such test"),
    ]:
        assert spoilt != text
        found = "\n".join(complaints(spoilt))
        assert any(part in found for part in message.split("|")), found


def test_an_outcome_that_is_missing_makes_no_page():
    cells = outcomes()
    cells.popitem()
    with pytest.raises(KeyError):
        render(cells)
