"""Each step of a pipeline, compared with the unpipelined model.

Every process runs the whole reference beside its stages, with as many threads, and compares what it
holds: no gradient has to travel, and the ranks work on it at the same time.

Where every stage adds up its gradients in the order 0..M-1, nothing but equality is right: the
reference then trains by itself from the first step on, and the weights must stay equal as well.
Otherwise sums differ by rounding. Training multiplies such differences (a hundredfold within twenty
steps, measured), so the reference starts each step from the pipeline's weights instead: what is
compared is one step, and float noise remains float noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fullbore.ir import Schedule
from fullbore.train.checkpoint import pack, unpack
from fullbore.train.compare import Difference, compare
from fullbore.train.link import Link
from fullbore.train.messages import Weights
from fullbore.train.optimizer import State
from fullbore.train.reference import Reference
from fullbore.train.settings import Settings
from fullbore.verify import accumulates_in_order


class Check:
    """Compares the stages of this process.

    Args:
        places: the stage of each parameter held here, by name.
        settings: of the run.
        link: to share weights.
        device: where the stages are.
    """

    def __init__(
        self, places: Mapping[str, int], settings: Settings, link: Link, *, device: torch.device
    ) -> None:
        schedule = settings.schedule
        self._link, self._in_order = link, accumulates_in_order(schedule)
        self._shares_weights = not all(self._in_order)
        self._places = places
        self._reference = Reference(settings.recipe, schedule.num_microbatches, device=device)

    def restore(self, weights: Mapping[str, Tensor], state: State) -> None:
        """Begin where a checkpoint ends."""
        self._reference.optimizer.load_weights(weights)
        self._reference.optimizer.load_state(state)

    def follow(self, schedule: Schedule) -> None:
        """From now on the stages run ``schedule``. Once rounding has parted the two, the reference
        needs the pipeline's weights ever after."""
        self._in_order = accumulates_in_order(schedule)
        self._shares_weights |= not all(self._in_order)

    def compare(
        self,
        inputs: Tensor,
        target: Tensor,
        gradients: Mapping[str, Tensor | None],
        losses: Sequence[Tensor] | None,
    ) -> list[Difference]:
        """Run the reference on the same batch and compare gradients and, where they are, losses."""
        wanted = self._reference.backward(inputs, target)
        right = self._reference.optimizer.gradients()
        found = [
            compare(name, gradient, right[name], exact=self._in_order[self._places[name]])
            for name, gradient in gradients.items()
        ]
        if losses is not None:
            # A forward does not depend on the order of the backwards.
            found += [
                compare(f"loss of microbatch {m}", loss, wanted[m], exact=True)
                for m, loss in enumerate(losses)
            ]
        return found

    def update(self, weights: Callable[[], Mapping[str, Tensor]], step: int) -> None:
        """Take the reference to the next step.

        Args:
            weights: gives those that the stages here have now.
            step: that is over.
        """
        self._reference.optimizer.step(step)
        if not self._shares_weights:
            return
        for shared in self._link.ask(Weights(pack(weights()))):
            self._reference.optimizer.load_weights(unpack(shared))
