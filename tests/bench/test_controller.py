"""The benchmark of the controller's steps runs, and tells apart what it times."""

import pytest
from bench.controller import length, per_step

pytestmark = pytest.mark.torch


def test_a_row_has_all_figures():
    name, *cells = per_step("local", "zbv_zero_bubble", config="test", rounds=2, tries=1)
    assert name == "local, zbv_zero_bubble"
    assert all(float(cell.split()[0]) > 0 for cell in cells[:4])


def test_a_step_lasts_from_the_first_start_to_the_last_end():
    assert length([(1.0, 3.0), (2.0, 6.0)]) == 5.0
