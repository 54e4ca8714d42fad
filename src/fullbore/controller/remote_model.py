"""What can be asked of a model whose stages are anywhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fullbore.controller.session import Session
from fullbore.controller.state import check_state, merge, parts_of
from fullbore.errors import ParameterError
from fullbore.runtime.tree import Tree
from fullbore.sim import Profile


class RemoteModel:
    """The stages of a pipeline as one model.

    Args:
        session: whose processes have the stages.
        num_stages: S.
    """

    def __init__(self, session: Session, num_stages: int) -> None:
        self._session, self._num_stages = session, num_stages

    def initialize(self) -> None:
        """Start the processes and build the stages. Whatever is asked for first does so, too.

        Raises:
            ParameterError: a stage cannot be sent to its process; say ``Factory(...)`` then.
            Exception: what a stage's construction raised.
        """
        self._session.start()

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        """Forget the gradients of all parameters."""
        self._change("zero_grad", set_to_none)

    def step(self) -> None:
        """One step of every stage's optimizer.

        Stages without an optimizer stay as they are.
        """
        self._change("optimizer_step")

    def clip_grad_norm(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale the gradients of the whole model down to this norm, if theirs is larger; the norm
        before, as ``torch.nn.utils.clip_grad_norm_``."""
        norm: Tensor = self._change("clip_grad_norm", max_norm, norm_type)[0]
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Copies of all parameters and buffers, by the unsplit model's names.

        Raises:
            ParameterError: two stages have different tensors of one name; see ``names``.
        """
        return merge(self._ask("state_dict"))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What ``state_dict`` of this or the unsplit model gave.

        Raises:
            ParameterError: something is missing, of another shape, or in no stage; nothing is
                changed then.
        """
        known = self._ask("state_names")
        check_state(state, known)
        self.initialize()
        self._session.change_each("load_state_dict", [(p,) for p in parts_of(state, known)])

    def copy_params_to_new_model(self, ref_model: nn.Module | Sequence[nn.Module]) -> None:
        """Give a model here the parameters and buffers of this one.

        Args:
            ref_model: the unsplit model, or a list with a module for each stage.

        Raises:
            ParameterError: it has other names, shapes, or another number of modules.
        """
        if isinstance(ref_model, nn.Module) and not isinstance(ref_model, nn.ModuleList):
            state = self.state_dict()
            check_state(state, [{n: tuple(v.shape) for n, v in ref_model.state_dict().items()}])
            ref_model.load_state_dict(state)
            return
        if len(ref_model) != self._num_stages:
            raise ParameterError(
                f"ref_model has {len(ref_model)} modules, and the pipeline {self._num_stages} "
                "stages; give one module a stage, or the unsplit model"
            )
        states = self.each_stage(_state_of)
        for module, found in zip(ref_model, states, strict=True):
            module.load_state_dict(found)

    def get_parameter(self, name: str) -> Tensor:
        """A copy of the parameter of this name in the unsplit model.

        Raises:
            ParameterError: there is none.
        """
        parts: list[Tensor | None] = self._ask("parameter", name)
        found = next((part for part in parts if part is not None), None)
        if found is None:
            raise ParameterError(f"no stage has a parameter of the name {name!r}")
        return found

    def gradients(self, names: Sequence[str] | None = None) -> dict[str, Tensor | None]:
        """Copies of the gradients of all parameters, or of some, by name; None where there is
        none."""
        return merge(self._ask("gradients", names))

    def watch(self, *stages: int) -> None:
        """Keep what these stages give in every run from now on; none: keep nothing."""
        self._change("watch", stages)

    def activations(self, stage: int) -> list[Tree]:
        """Copies of what a watched stage gave in the last run, by microbatch.

        Raises:
            ParameterError: it was not watched.
        """
        return self._watched(stage)[0]

    def activation_gradients(self, stage: int) -> list[Tree]:
        """The gradients of ``activations``; None where none was computed."""
        return self._watched(stage)[1]

    def each_stage(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Call ``function(stage, *args)`` for every stage where it lives; what it gives, by stage.

        Args:
            function: gets a ``HostedStage``: the index, the module, and the optimizer if it has
                one. It may change them.
            args: the same for all stages.
        """
        found: dict[int, Any] = {}
        for part in self._change("each_stage", function, args):
            found |= part
        return [found[index] for index in sorted(found)]

    def profile(self) -> Profile:
        """When each action of the latest steps ran on every rank; needs ``profile=True``."""
        found: Profile = next(part for part in self._ask("profile") if part is not None)
        return found

    def save_checkpoint(self, path: str | os.PathLike[str], *, extra: Any = None) -> None:
        """Write parameters, buffers and optimizers; see ``runtime.save_checkpoint``. Any other
        pipeline of this model can read it, also one without a controller."""
        self._ask("save_checkpoint", str(Path(path).absolute()), extra)

    def load_checkpoint(self, path: str | os.PathLike[str]) -> Any:
        """Read a checkpoint; gives what was saved as ``extra``."""
        return self._change("load_checkpoint", str(Path(path).absolute()))[0]

    def _watched(self, stage: int) -> tuple[list[Tree], list[Tree]]:
        if not 0 <= stage < self._num_stages:
            raise ParameterError(f"there is no stage {stage}; they are 0..{self._num_stages - 1}")
        found: tuple[list[Tree], list[Tree]]
        found = next(part for part in self._ask("activations", stage) if part is not None)
        return found

    def _ask(self, method: str, *args: Any) -> list[Any]:
        self.initialize()
        return self._session.ask(method, *args)

    def _change(self, method: str, *args: Any) -> list[Any]:
        self.initialize()
        return self._session.change(method, *args)


def _state_of(stage: Any) -> dict[str, Any]:
    return {name: value.detach().cpu() for name, value in stage.module.state_dict().items()}
