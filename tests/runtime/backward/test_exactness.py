"""I and W leave what a full backward leaves, and W does what it can.

Every module goes through two microbatches, once with full backwards and once split.
"""

import pytest
from tests.runtime.backward.cases import Case
from tests.runtime.backward.compare import assert_same, run_split, run_whole
from tests.runtime.backward.layers import FIRST, LAYERS
from tests.runtime.backward.limits import CHECKPOINTS, COMPILED, FUNCTIONS
from tests.runtime.backward.uses import FROZEN, OUTPUTS, PRODUCTS, SHARED

from fullbore.runtime.backward import split

pytestmark = pytest.mark.torch

FAMILIES = {
    "layers": LAYERS,
    "first stage": FIRST,
    "shared": SHARED,
    "outputs": OUTPUTS,
    "frozen": FROZEN,
    "products": PRODUCTS,
    "saved": CHECKPOINTS,
    "functions": FUNCTIONS,
    "compiled": COMPILED,
}
# The code of torch.compile warns.
COMPILES = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]


def cases() -> list[object]:
    return [
        pytest.param(case, id=f"{family}: {name}", marks=COMPILES if family == "compiled" else ())
        for family, cases in FAMILIES.items()
        for name, case in cases.items()
    ]


@pytest.mark.parametrize("case", cases())
def test_a_split_backward_leaves_what_a_full_one_does(case: Case):
    assert_same(run_split(case), run_whole(case))


@pytest.mark.parametrize("case", SHARED.values(), ids=SHARED)
def test_no_parameter_is_finished_twice_in_w(case: Case, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(split, "FLUSH_BYTES", 1)
    assert_same(run_split(case), run_whole(case))
