"""Instances of the zero-bubble paper (arXiv 2401.10241): times of table 6, memory of a transformer.

A rank holds ``34 h + 5 a s`` of a microbatch between F and I and ``32 h`` between I and W, in
half-precision numbers per token, with s = 1024.
"""

from fullbore.ir import Placement
from fullbore.plan import Instance, make_instance
from fullbore.sim import UniformCosts

HELD, KEPT = 34 * 4096 + 5 * 32 * 1024, 32 * 4096
SMALL, MIDDLE = (18.522, 18.086, 9.337, 0.601), (29.718, 29.444, 19.927, 0.527)  # 1.5B, 6.2B
UNIT = (2.0, 2.0, 2.0, 0.0)
# Table 8, of both chunks of a rank.
TABLE_8 = {
    16: (28814.0, 28760.0, 19352.0, 1610.0),
    24: (13526.0, 13938.0, 10502.0, 755.0),
    32: (18916.0, 19496.0, 14576.0, 879.0),
}


def costs(times: tuple[float, ...], *, held: float = HELD, kept: float = KEPT) -> UniformCosts:
    f, i, w, latency = times
    return UniformCosts(F=f, I=i, W=w, latency=latency, activation_bytes=held, kept_bytes=kept)


def fused(times: tuple[float, ...]) -> UniformCosts:
    """The backward in one piece."""
    f, i, w, latency = times
    return costs((f, i + w, 0.0, latency))


def instance(
    placement: Placement, microbatches: int, memory: float, model: UniformCosts
) -> Instance:
    """``memory`` in multiples of P microbatches."""
    limit = memory * placement.num_ranks * model.activation_bytes
    return make_instance(placement, microbatches, costs=model, memory=limit)


def rate(of: Instance, makespan: float) -> float:
    """The bubble rate."""
    return 1 - max(of.work) / makespan
