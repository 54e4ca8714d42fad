"""A memory limit as users write it: bytes, or a multiple of what 1F1B holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fullbore.errors import ParameterError
from fullbore.ir import Placement
from fullbore.sim import Costs


class Memory(NamedTuple):
    """What a rank may hold.

    Attributes:
        amount: bytes, or how many times P microbatches' activations.
        relative: whether it is the latter.
    """

    amount: float
    relative: bool

    def bytes(self, costs: Costs, placements: Iterable[Placement]) -> float:
        """The limit in bytes: for a relative one, of the placement that holds most. It counts
        activations; what is static comes on top. Placements that the costs do not fit are left out.

        Raises:
            ParameterError: it is relative, and the costs do not say what activations take.
        """
        if not self.relative:
            return self.amount
        found = []
        for placement in placements:
            try:
                table = costs.table(placement)
            except ParameterError:
                continue
            held = placement.sum_by_rank(table.activation_bytes)
            if not any(held):
                raise ParameterError(
                    f"memory: {self.amount:g}x is a multiple of what activations take, which the "
                    "costs do not say. Give bytes, or costs with activation_bytes"
                )
            static = placement.sum_by_rank(table.static_bytes)
            found.append(self.amount * placement.num_ranks * max(held) + max(static))
        return max(found, default=self.amount)


def parse_memory(text: str) -> Memory:
    """``3e10`` is bytes, ``0.75x`` a multiple of P microbatches' activations.

    Raises:
        ParameterError: the text is neither, or the number is not more than 0.
    """
    number, relative = (text[:-1], True) if text.endswith("x") else (text, False)
    try:
        amount = float(number)
    except ValueError:
        amount = -1.0
    if not 0 < amount < float("inf"):
        raise ParameterError(f"{text!r}; give bytes, or 0.75x of P microbatches' activations")
    return Memory(amount, relative)
