"""The unpipelined model: what every run of a pipeline is compared with (DESIGN 4.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fullbore.ir import Schedule
from fullbore.runtime import LocalTransport, Pipeline, Stage
from fullbore.verify import accumulates_in_order

WIDTH = 8


def linear_tanh(num_stages: int, *, seed: int = 0, width: int = WIDTH) -> list[nn.Module]:
    """One linear and tanh a stage."""
    torch.manual_seed(seed)
    return [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(num_stages)]


def mse(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).square().mean()


def apply(modules: Iterable[nn.Module], *args: Any, **kwargs: Any) -> Any:
    """The whole model: a tuple or list is unpacked, as between stages."""
    value: Any = args
    for module in modules:
        arguments = tuple(value) if type(value) in (tuple, list) else (value,)
        value = module(*arguments, **kwargs)
    return value


@dataclass
class Result:
    """Losses by microbatch, and each stage's gradients by parameter name."""

    losses: list[Tensor]
    gradients: list[dict[str, Tensor | None]]
    outputs: list[Any]


def gradients(modules: Sequence[nn.Module]) -> list[dict[str, Tensor | None]]:
    return [
        {name: None if p.grad is None else p.grad.clone() for name, p in m.named_parameters()}
        for m in modules
    ]


def reference(
    modules: Sequence[nn.Module],
    args: Sequence[tuple[Any, ...]],
    targets: Sequence[Any],
    *,
    weights: Sequence[float],
    loss_fn: Callable[..., Tensor] = mse,
    kwargs: Sequence[dict[str, Any]] | None = None,
    on_copy: bool = True,
) -> Result:
    """A plain loop over microbatches, on a copy of the modules unless told otherwise."""
    copies = deepcopy(list(modules)) if on_copy else modules
    losses, outputs = [], []
    for m, (given, target, weight) in enumerate(zip(args, targets, weights, strict=True)):
        output = apply(copies, *given, **(kwargs[m] if kwargs else {}))
        loss = loss_fn(output, target)
        if loss.requires_grad:
            (weight * loss).backward()
        losses.append(loss.detach())
        outputs.append(output)
    return Result(losses, gradients(copies), outputs)


def local_pipeline(modules: Sequence[nn.Module], schedule: Schedule, **options: Any) -> Pipeline:
    """All ranks of ``schedule`` in this process."""
    stages = [Stage(module, i, len(modules)) for i, module in enumerate(modules)]
    options.setdefault("loss_fn", mse)
    return Pipeline(stages, schedule, transport=LocalTransport(), **options)


def assert_same(found: Tensor | None, wanted: Tensor | None, *, exact: bool, what: str) -> None:
    """Bit for bit where ``exact``, else within float noise."""
    if wanted is None or found is None:
        assert found is wanted, f"{what}: {found} where the reference has {wanted}"
        return
    rtol, atol = (0.0, 0.0) if exact else (1e-5, 1e-6)
    torch.testing.assert_close(
        found, wanted, rtol=rtol, atol=atol, msg=lambda text: f"{what}: {text}"
    )


def assert_gradients(
    modules: Sequence[nn.Module],
    wanted: Sequence[dict[str, Tensor | None]],
    schedule: Schedule,
    stages: Iterable[int] | None = None,
) -> None:
    """Each stage's gradients equal the reference's: exactly, where the order of accumulation is
    the reference's."""
    exact = accumulates_in_order(schedule)
    indices = range(len(wanted)) if stages is None else stages
    for stage, module in zip(indices, modules, strict=True):
        for name, parameter in module.named_parameters():
            assert_same(
                parameter.grad,
                wanted[stage][name],
                exact=exact[stage],
                what=f"stage {stage} {name}",
            )
