"""Layers whose forward is computed again in the backward."""

from __future__ import annotations

from tests.compositions.harness import LAYERS
from tests.reference import WIDTH
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Recomputed(nn.Module):
    """Counts how often its body runs, in ``runs``."""

    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.before = nn.Linear(WIDTH, WIDTH)
        self.body = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.Dropout(0.0), nn.Tanh(), nn.Linear(WIDTH, WIDTH)
        )
        self.use_reentrant, self.runs = use_reentrant, 0
        self.body.register_forward_pre_hook(self._count)

    def _count(self, *_: object) -> None:
        self.runs += 1

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.body, self.before(h), use_reentrant=self.use_reentrant)
        return out


def layers(*, use_reentrant: bool) -> list[nn.Module]:
    return [Recomputed(use_reentrant=use_reentrant) for _ in range(LAYERS)]
