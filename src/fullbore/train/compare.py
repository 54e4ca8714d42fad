"""How far a pipeline is from the unpipelined model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

TOLERANCE = 1e-5
"""Sums in another order: gradients may differ by this part of the largest one in the tensor."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a tensor is from the reference's.

    Attributes:
        name: the parameter, or which loss.
        absolute: the largest difference of two elements.
        relative: ``absolute`` in terms of the reference's largest element.
        exact: whether nothing but equality is right.
    """

    name: str
    absolute: float
    relative: float
    exact: bool

    @property
    def wrong(self) -> bool:
        """Whether it is more than rounding explains."""
        return not self.relative <= (0.0 if self.exact else TOLERANCE)

    def __str__(self) -> str:
        if self.absolute != self.absolute or self.absolute == float("inf"):
            return f"{self.name}: not comparable, a value is missing or not finite"
        return f"{self.name}: {self.absolute:.3g} ({self.relative:.3g} of its largest value)"


def compare(name: str, found: Tensor | None, wanted: Tensor | None, *, exact: bool) -> Difference:
    """The difference of two tensors of one shape; infinite where only one is there.

    Where both are no numbers, or the same infinity, they are equal: a loss that diverges does so in
    the reference as well.
    """
    if found is None or wanted is None:
        missing = 0.0 if found is wanted else float("inf")
        return Difference(name, missing, missing, exact)
    same = (found == wanted) | (found.isnan() & wanted.isnan())
    if same.all():
        return Difference(name, 0.0, 0.0, exact)
    absolute = (found - wanted)[~same].abs().max().item()
    largest = wanted.abs().max().item()
    return Difference(name, absolute, absolute / largest if largest else float("inf"), exact)


def worst(differences: Iterable[Difference]) -> Difference | None:
    """The one to report: what is wrong comes first, then what is far; None of nothing."""
    return max(differences, key=_gravity, default=None)


def _gravity(difference: Difference) -> tuple[bool, float]:
    relative = difference.relative
    return difference.wrong, relative if relative == relative else float("inf")
