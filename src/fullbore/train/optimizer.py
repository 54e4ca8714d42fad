"""AdamW whose state goes by the names of the parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor, nn
from torch.optim import AdamW

from fullbore.train.settings import Recipe

State = dict[str, dict[str, Tensor]]
"""What the optimizer knows about each parameter, by the parameter's name."""


class Optimizer:
    """AdamW over parts of the model.

    It works on each element by itself: any split of the model gives, bit for bit, the same updates.

    Args:
        models: the parts; no name occurs twice.
        recipe: gives the learning rate of a step.
        adamw: that has these parameters already; None makes one.
    """

    def __init__(
        self, models: Iterable[nn.Module], recipe: Recipe, *, adamw: AdamW | None = None
    ) -> None:
        self._recipe = recipe
        self.parameters = {n: p for model in models for n, p in model.named_parameters()}
        self._adamw = adamw or AdamW(self.parameters.values(), lr=recipe.learning_rate)

    def step(self, step: int) -> None:
        """Update the parameters and forget their gradients."""
        for group in self._adamw.param_groups:
            group["lr"] = self._recipe.rate(step)
        self._adamw.step()
        self._adamw.zero_grad()

    def gradients(self) -> dict[str, Tensor | None]:
        """The parameters' gradients; they share the memory."""
        return {name: parameter.grad for name, parameter in self.parameters.items()}

    def weights(self) -> dict[str, Tensor]:
        """The parameters' values; they share the memory."""
        return {name: parameter.detach() for name, parameter in self.parameters.items()}

    def state(self) -> State:
        """The state of each parameter; it shares the memory."""
        return {name: dict(self._adamw.state[p]) for name, p in self.parameters.items()}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy these values into the parameters of the same names."""
        for name, parameter in self.parameters.items():
            if name in weights:
                parameter.detach().copy_(weights[name])

    def load_state(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take over the state of the parameters of the same names."""
        for name, parameter in self.parameters.items():
            if name in state:
                self._adamw.state[parameter] = {
                    # AdamW keeps the number of steps on the CPU.
                    key: value.clone() if key == "step" else value.to(parameter.device, copy=True)
                    for key, value in state[name].items()
                }
