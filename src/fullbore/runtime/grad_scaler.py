"""Loss scaling for half precision, where an overflow on one rank must stop the step of all."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from fullbore.errors import ParameterError
from fullbore.runtime.pipeline import Pipeline


class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler`` for the ranks of a pipeline: all of them update their parameters or
    none does, and all go on with the same scale.

    ::

        pipe.step(x, target=y, loss_scale=scaler.get_scale())
        scaler.unscale_(optimizer)  # only if gradients are looked at or clipped
        clip_grad_norm_(parameters, 1.0, pipeline=pipe)
        scaler.step(optimizer)
        scaler.update()

    Every rank makes these calls, one each a step, with all its optimizers: ``step(a, b)``. A rank
    that trains nothing calls ``step()``.

    Args:
        device: of the gradients, ``"cuda"`` or ``"cpu"``.
        init_scale, growth_factor, backoff_factor, growth_interval, enabled: as in torch; the same
            on all ranks.
        pipeline: whose gradients are scaled.
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        *,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        pipeline: Pipeline,
    ) -> None:
        super().__init__(
            device, init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )
        self._pipeline = pipeline
        self._unscaled: set[int] | None = None

    def unscale_(self, *optimizers: Optimizer) -> None:
        """Divide the gradients of all this rank's optimizers by the scale, and find out whether
        any gradient of any rank is not finite.

        Raises:
            RuntimeError: it was called before in this step.
            ExecutionError: another rank failed, or does something else.
        """
        if not self._enabled:
            return
        if self._unscaled is not None:
            raise RuntimeError(
                "unscale_() is called once a step, with all optimizers of the rank; update() ends "
                "the step"
            )
        # The scale, a tensor, is made by the first use.
        self.scale(torch.ones((), device=self._device))
        assert self._scale is not None
        found = torch.zeros((), device=self._scale.device)
        for optimizer in optimizers:
            super().unscale_(optimizer)
            for flag in self._flags(optimizer).values():
                found = torch.maximum(found, flag.to(found.device))
        told = self._pipeline.all_gather(found.cpu())
        everywhere = torch.stack(told).max().to(found.device)
        for key in (self, *optimizers):  # of its own for a rank that has no optimizer
            flags = self._flags(key)
            for device in {*flags, everywhere.device}:
                flags[device] = everywhere.to(device)
        self._unscaled = {id(optimizer) for optimizer in optimizers}

    def step(self, *optimizers: Optimizer) -> None:
        """Update the parameters, unless a gradient of any rank is not finite.

        Raises:
            ParameterError: an optimizer was not there when ``unscale_`` was called.
            RuntimeError: an optimizer has made its step already.
            ExecutionError: another rank failed, or does something else.
        """
        if self._enabled and self._unscaled is None:
            self.unscale_(*optimizers)
        known = self._unscaled
        if known is not None and not known.issuperset(map(id, optimizers)):
            raise ParameterError(
                "unscale_() and step() must be given the same optimizers: all of this rank"
            )
        for optimizer in optimizers:
            super().step(optimizer)

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Adjust the scale, alike on all ranks; the step is over."""
        super().update(new_scale)
        self._unscaled = None

    def _flags(self, key: object) -> dict[torch.device, Tensor]:
        flags: dict[torch.device, Tensor] = self._per_optimizer_states[id(key)][
            "found_inf_per_device"
        ]
        return flags
