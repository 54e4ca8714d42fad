"""How differences are measured and judged."""

import pytest
import torch

from fullbore.train.compare import TOLERANCE, compare, worst

pytestmark = pytest.mark.torch

NAN, INF = float("nan"), float("inf")


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values)


@pytest.mark.parametrize("exact", [True, False])
def test_equal_tensors(exact: bool):
    found = compare("w", tensor(1, -2), tensor(1, -2), exact=exact)
    assert (found.absolute, found.relative, found.wrong) == (0, 0, False)


def test_rounding_is_wrong_only_where_equality_is_asked_for():
    close = tensor(1, -4 * (1 + TOLERANCE / 2))
    assert compare("w", close, tensor(1, -4), exact=True).wrong
    found = compare("w", close, tensor(1, -4), exact=False)
    assert not found.wrong
    assert found.relative == pytest.approx(TOLERANCE / 2, rel=0.05)
    assert found.absolute == pytest.approx(4 * found.relative)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (tensor(1, 2), tensor(1, 2.1)),
        (tensor(1e-30), tensor(0)),
        (tensor(NAN), tensor(1)),
        (tensor(1), tensor(NAN)),
        (tensor(1, NAN), tensor(1.1, NAN)),
        (tensor(INF), tensor(-INF)),
        (None, tensor(1)),
        (tensor(1), None),
    ],
)
def test_what_no_rounding_explains_is_wrong(found, wanted):
    difference = compare("w", found, wanted, exact=False)
    assert difference.wrong
    assert "w" in str(difference)


@pytest.mark.parametrize("value", [None, tensor(NAN, 1), tensor(INF, -INF)])
def test_what_is_missing_or_lost_on_both_sides_is_equal(value):
    found = compare("w", value, value, exact=True)
    assert (found.absolute, found.wrong) == (0, False)


def test_the_worst_is_wrong_before_it_is_far():
    near = compare("near", tensor(1 + 1e-6), tensor(1), exact=True)
    far = compare("far", tensor(1 + TOLERANCE / 2), tensor(1), exact=False)
    equal = compare("equal", tensor(1), tensor(1), exact=True)
    lost = compare("lost", tensor(NAN), tensor(1), exact=True)
    assert worst([equal, far]) is far
    assert worst([equal, far, near]) is near
    assert worst([near, lost, far]) is lost
    assert worst([]) is None
