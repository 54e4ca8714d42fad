"""Whether this process is one of several that torchrun started. Nothing here needs torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Self

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Membership:
    """A process's place among those that torchrun started.

    Attributes:
        rank: counts over all machines; rank 0 speaks for all.
        size: how many there are.
        local_rank: counts on this machine: which of its devices to use.
    """

    rank: int
    size: int
    local_rank: int

    @classmethod
    def find(cls) -> Self | None:
        """As the environment says; None where nobody started this process so."""
        if not all(name in os.environ for name in VARIABLES):
            return None
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        return cls(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), local_rank)
