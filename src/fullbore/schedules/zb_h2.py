"""ZB-H2: no idle time between a rank's first action and its last, at twice the memory of 1F1B."""

from __future__ import annotations

from fullbore.ir import Placement, Schedule
from fullbore.schedules.family import Family
from fullbore.schedules.zb_h1 import ahead


def build(placement: Placement, num_microbatches: int) -> Schedule:
    """Section 2.2 of the paper: as ZB-H1, twice as far ahead. With fewer than 2P-1 microbatches
    there are not enough of them to fill the start."""
    return ahead(placement, num_microbatches, times=2)


FAMILY = Family(
    name="zb_h2",
    build=build,
    shape="linear",
    description="zb_h1 with twice the memory: its span has no bubble if F = I = W",
    source="Qi et al. 2024, Zero Bubble Pipeline Parallelism, arXiv:2401.10241, section 2.2",
    instead="interleaved_zero_bubble",
)
