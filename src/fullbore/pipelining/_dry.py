"""One rank alone: what it receives is made up, what it sends is thrown away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fullbore.pipelining._metadata import Metas, PipeliningMetadataError, TensorMeta
from fullbore.runtime import LocalTransport
from fullbore.runtime.transport.base import Edge, read_tag
from fullbore.runtime.tree import Tree, tensors


class DryRunTransport(LocalTransport):
    """Plays one rank of a ``fake`` process group.

    Activations are zeros of the shapes that the receiving stage declares, gradients zeros of the
    shapes of the activations that were sent.

    Args:
        rank: which one.
        inputs: the declared inputs of the stages that receive, by stage.
        devices: where these stages want them.
    """

    def __init__(
        self,
        rank: int,
        inputs: Mapping[int, Metas | None],
        *,
        devices: Mapping[int, torch.device | str | None],
    ) -> None:
        super().__init__()
        self._rank, self._inputs, self._devices = rank, inputs, devices
        self._sent: dict[tuple[int, int], list[tuple[TensorMeta, torch.device]]] = {}
        self._told: dict[int, Any] = {}

    @property
    def ranks(self) -> range:
        """The one."""
        return range(self._rank, self._rank + 1)

    def send(self, edge: Edge, tag: int, value: Tree) -> None:
        """Note what was sent, and drop it."""
        message = read_tag(tag)
        if message.epoch == 0:
            self._told[tag] = value
        elif not message.backward:
            wanted = [t for t in tensors(value) if t.requires_grad]
            self._sent[message.stage, message.microbatch] = [
                (TensorMeta(tuple(t.shape), t.dtype), t.device) for t in wanted
            ]

    def post(self, edge: Edge, tag: int) -> None:
        """Nothing to prepare."""

    def recv(self, edge: Edge, tag: int) -> Tree:
        """Zeros; of what ranks tell each other outside of steps, what this one said itself.

        Raises:
            PipeliningMetadataError: the receiving stage declares no inputs.
        """
        message = read_tag(tag)
        if message.epoch == 0:
            return self._told[tag]
        if message.backward:
            sent = self._sent.pop((message.stage + 1, message.microbatch))
            return tuple(meta.make(device, training=False) for meta, device in sent)
        declared = self._inputs.get(message.stage)
        if declared is None:
            raise PipeliningMetadataError(
                f"stage {message.stage}: with the fake backend nothing is received; say what one "
                "microbatch looks like, by PipelineStage(..., input_args=tensors)"
            )
        device, training = self._devices.get(message.stage), torch.is_grad_enabled()
        return tuple(meta.make(device, training=training) for meta in declared)

    def reset(self) -> None:
        """Forget the failed run."""
        super().reset()
        self._sent.clear()
