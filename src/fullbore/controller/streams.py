"""Where a process's GPU computes: beside what the rest of the program does there, or within it.

Monarch's ``compute_stream`` and ``p2p_stream`` say on which streams a controller's single
operations run. Here a whole step runs where the stages are, so that one stream is left to choose:

* ``compute_stream``: stages compute on a stream of their own. It waits, by events, for what was
  given to the device before the step, and what comes after waits for it.
* ``p2p_stream``: nothing to choose. Tensors of a GPU always travel on the communicator's own
  stream, and what needs them waits for them by events; on the CPU a thread writes to the sockets.

On the CPU there are no streams, and ``compute_stream`` means nothing: a process's actions run one
after another, and what could run beside them is other processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fullbore.controller.opaque import is_monarchs
from fullbore.errors import ParameterError


def check_stream(stream: Any, name: str) -> Any:
    """The stream to use, as it can be sent to a process.

    Args:
        stream: None for the stream that is current there; True, a name or a ``Stream`` of Monarch
            for one of its own in each process; a ``torch.cuda.Stream`` for this one, where the
            stages are in this process.
        name: of the argument.

    Raises:
        ParameterError: it is something else.
    """
    if stream is None or isinstance(stream, torch.Stream):
        return stream
    kind = type(stream)
    is_named = isinstance(stream, str) or (is_monarchs(stream) and kind.__name__ == "Stream")
    if stream is True or is_named:
        return True
    raise ParameterError(
        f"{name} is a {kind.__name__}; give None, True or a name for a stream of its own in each "
        "process, or a torch.cuda.Stream of this one"
    )


class SideStream:
    """The stream that a process's stages compute on.

    Args:
        stream: what ``check_stream`` gave.
        modules: the stages. If none of their parameters is on a GPU, there is nothing to do.
    """

    def __init__(self, stream: Any, modules: Iterable[nn.Module]) -> None:
        devices = [p.device for module in modules for p in module.parameters() if p.is_cuda]
        is_used = stream is not None and bool(devices)
        self._device = devices[0] if is_used else None
        self._stream = stream
        if is_used and stream is True:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    @contextmanager
    def active(self) -> Iterator[None]:
        """What is given to the GPU inside runs after what was given before, and before what
        comes after."""
        if self._device is None:
            yield
            return
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            # Memory goes back to the stream that it was taken on. This also keeps whoever gets it
            # there next from overwriting what is still read.
            current.wait_stream(self._stream)
