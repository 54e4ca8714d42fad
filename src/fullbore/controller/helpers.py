"""What Monarch's pipelining calls on a worker, under its names, on any device.

They are plain functions: call them in one process, or in a stage factory on a worker. Nothing here
runs a schedule; the runtime does. What they return is the object itself, and what they take is an
object or Monarch's ``OpaqueRef`` of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from fullbore.controller.opaque import unwrap
from fullbore.controller.stages import Factory
from fullbore.errors import ExecutionError, ParameterError
from fullbore.runtime.backward import full_backward
from fullbore.runtime.compute import checked_loss

INPUT = "input_tensor"
"""The name that Monarch calls a stage's input by."""


def asks_for_input_tensor(module: nn.Module) -> bool:
    """Whether the module's forward has a parameter ``input_tensor`` that can be given by name."""
    wanted = _parameters(module).get(INPUT)
    named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return wanted is not None and wanted.kind in named


def pass_by_name(module: nn.Module) -> RemovableHandle | None:
    """From now on, the module's first positional argument is passed as ``input_tensor``, if its
    forward has that parameter, and elsewhere than in the first place. None if it has not."""
    first = next(iter(_parameters(module)), None)
    if first == INPUT and _parameters(module)[INPUT].kind is not Parameter.KEYWORD_ONLY:
        return None
    if not asks_for_input_tensor(module):
        return None
    return module.register_forward_pre_hook(_by_name, with_kwargs=True)


def _parameters(module: nn.Module) -> Mapping[str, Parameter]:
    try:
        return signature(module.forward).parameters
    except (TypeError, ValueError):  # a function without a signature
        return {}


def _by_name(
    _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if not args or INPUT in kwargs:
        return args, kwargs
    return args[1:], {**kwargs, INPUT: args[0]}


class MeanLoss:
    """A loss function whose result is averaged if it is more than one number, as Monarch does."""

    def __init__(self, loss_fn: Callable[..., Any]) -> None:
        self._loss_fn = loss_fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The loss, or what is none as it is."""
        loss = self._loss_fn(*args, **kwargs)
        return loss.mean() if isinstance(loss, Tensor) and loss.numel() != 1 else loss


def add_sys_path_impl(new_directory: str) -> None:
    """Let this process import from ``new_directory``, after everything else."""
    if new_directory not in sys.path:
        sys.path.append(new_directory)


def build_module_chunk(module_name_or_path: str, *args: Any, **kwargs: Any) -> nn.Module:
    """A stage in training mode, made by calling what the dotted path names.

    It is made on the default device: ``with torch.device("cuda:1"):`` around the call, or
    ``torch.set_default_device``, says on which.

    Raises:
        ParameterError: there is nothing at the path, or it makes no module.
    """
    return Factory(module_name_or_path, *args, **kwargs).build().train()


def build_loss_list() -> list[Tensor]:
    """Where the losses of a batch are gathered."""
    return []


def build_pp_loss_layer() -> nn.Module:
    """The mean squared error."""
    return nn.MSELoss()


def build_optimizer_chunk(
    model_chunk: Any, lr: float, *, optimizer: type[Optimizer] = torch.optim.SGD, **options: Any
) -> Optimizer:
    """An optimizer for a stage's parameters.

    Args:
        model_chunk: the stage.
        lr: the learning rate.
        optimizer: any class of torch's kind.
        options: its further arguments.
    """
    return optimizer(unwrap(model_chunk).parameters(), lr=lr, **options)  # type: ignore[call-arg]


def optimizer_zero_grad(optimizer_chunk: Any) -> None:
    """Forget the gradients of the optimizer's parameters."""
    unwrap(optimizer_chunk).zero_grad()


def optimizer_step(optimizer_chunk: Any) -> None:
    """Update the optimizer's parameters."""
    unwrap(optimizer_chunk).step()


def get_parameter(
    module_ref: Any, param_name: str, param_shape: tuple[int, ...] | None = None
) -> Tensor:
    """A parameter or buffer of a stage, the tensor itself.

    Args:
        module_ref: the stage.
        param_name: as in ``named_parameters()`` or ``named_buffers()``.
        param_shape: what its shape must be, if that is known.

    Raises:
        AttributeError: there is none of that name.
        ParameterError: it has another shape.
    """
    module: nn.Module = unwrap(module_ref)
    for named in (module.named_parameters, module.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            if name != param_name:
                continue
            if param_shape is not None and tensor.shape != torch.Size(param_shape):
                raise ParameterError(
                    f"{param_name} has shape {tuple(tensor.shape)}, not {tuple(param_shape)}"
                )
            return tensor
    raise AttributeError(
        f"{type(module).__name__} has no parameter or buffer {param_name!r}; "
        "named_parameters() tells the names"
    )


def get_loss_impl(loss_list: Any) -> Tensor:
    """The sum of the losses gathered, which are then forgotten.

    Raises:
        ExecutionError: there are none.
    """
    losses: list[Tensor] = unwrap(loss_list)
    if not losses:
        raise ExecutionError(
            "no loss has been gathered: the last stage's backward has not run, or had no loss list"
        )
    total = losses[0] if len(losses) == 1 else torch.stack(losses).sum()
    losses.clear()
    return total


def run_forward_impl(
    stage: Any, input_tensor: Tensor, model_chunk_id: int, microbatch_id: int
) -> Tensor:
    """What a stage makes of one microbatch, with its graph.

    The input is asked for a gradient, where it can have one: whole numbers can't. It is passed by
    the name ``input_tensor`` if the stage's forward has a parameter of that name, else by position.

    Raises:
        Exception: what the stage raised, with a note of stage and microbatch.
    """
    module: nn.Module = unwrap(stage)
    if input_tensor.is_floating_point() or input_tensor.is_complex():
        input_tensor.requires_grad_()
    try:
        with torch.enable_grad():
            by_name = asks_for_input_tensor(module)
            output = module(input_tensor=input_tensor) if by_name else module(input_tensor)
    except Exception as error:
        error.add_note(f"stage {model_chunk_id}, action {model_chunk_id}F{microbatch_id}")
        raise
    return cast(Tensor, output)


def run_backward_impl(
    input_tensor: Tensor,
    output_tensor: Tensor,
    output_tensor_grad: Tensor | None,
    y: Any,
    loss_layer: Any,
    loss_list: Any,
    model_chunk_id: int,
    microbatch_id: int,
    num_microbatches: int,
    is_last_stage: bool,  # noqa: FBT001 - Monarch's signature
    is_last_microbatch: bool,  # noqa: FBT001
) -> Tensor | None:
    """Backward of one microbatch through one stage; the graph is freed.

    After the last stage it starts at the mean of ``loss_layer(output_tensor, y)`` over
    ``num_microbatches``, which is added to ``loss_list``, cut from its graph. Elsewhere it starts
    at ``output_tensor`` with ``output_tensor_grad``.

    Returns:
        The gradient of the input that this backward found; None if it has none.

    Raises:
        ParameterError: there is no gradient to start with, or nothing that wants one.
        Exception: what the loss or the backward raised, with a note of stage and microbatch.
    """
    try:
        root, gradient = output_tensor, output_tensor_grad
        if is_last_stage:
            root = _loss(loss_layer, output_tensor, y, num_microbatches)
            gradient = torch.ones_like(root)
            _gather(unwrap(loss_list), root.detach(), whole=is_last_microbatch)
        if gradient is None:
            raise ParameterError("there is no gradient of the output; the next stage gives it")
        return _backward(input_tensor, root, gradient)
    except Exception as error:
        error.add_note(f"stage {model_chunk_id}, action {model_chunk_id}B{microbatch_id}")
        raise


def _loss(loss_layer: Any, output: Tensor, y: Any, num_microbatches: int) -> Tensor:
    with torch.enable_grad():
        found = unwrap(loss_layer)(output, y)
        mean = checked_loss(found.mean() if isinstance(found, Tensor) else found)
        loss = mean / num_microbatches
    if not loss.requires_grad:
        raise ParameterError(
            "the loss does not require grad: nothing that can be trained leads to it"
        )
    return loss


def _gather(losses: list[Tensor] | None, loss: Tensor, *, whole: bool) -> None:
    if losses is None:
        return
    losses.append(loss)
    if whole:
        losses[:] = [torch.stack(losses).sum()]


def _backward(input_tensor: Tensor, root: Tensor, gradient: Tensor) -> Tensor | None:
    """Run it; what the input's gradient grew by."""
    if not input_tensor.requires_grad:
        full_backward([root], [gradient])
        return None
    found: list[Tensor] = []
    hook = input_tensor.register_hook(found.append)  # type: ignore[no-untyped-call] # torch's
    try:
        if not input_tensor.is_leaf:
            # Other microbatches may come of the same graph below.
            torch.autograd.backward(root, gradient, retain_graph=True)
            return found[0] if found else None
        before, input_tensor.grad = input_tensor.grad, None
        try:
            full_backward([root], [gradient])
        finally:
            input_tensor.grad = before
    finally:
        hook.remove()
    return found[0] if found else None
