"""Random numbers that depend on the layer and the microbatch, and not on how the model is split.

What a seeded module draws in its forward (dropout's masks, say) comes from a seed made of three
things: the number given to ``step(seed=...)``, the microbatch, and the module's name. It is the
same on any number of ranks, in any schedule, in the unpipelined loop, and when an activation
checkpoint computes the forward again.

The seed of the microbatch is kept where PyTorch keeps it, in the random number generator: a
checkpoint that runs a forward again puts the generator back first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from threading import get_ident
from typing import TypeVar

import torch
from torch import nn

from fullbore.errors import ParameterError

_HALF = (1 << 32) - 1
_MARK = 0xF0B5 << 16
_Module = TypeVar("_Module", bound=nn.Module)


def seeded(module: _Module, name: str) -> _Module:
    """Let ``module`` draw from a seed of its own in every microbatch while it is in training mode.

    The module stays as it is, but for two hooks; its parameters keep their names. Its forward must
    run inside ``Pipeline.step(seed=...)`` or ``microbatch_seed``. Called twice in one microbatch,
    it draws the same numbers twice. Seeded modules may hold others.

    Args:
        module: any module, such as a transformer block with its dropouts.
        name: of this module alone in the whole model, the same however the model is split.
    """
    draws = _Draws(name)
    module.register_forward_pre_hook(draws.begin)
    module.register_forward_hook(draws.end, always_call=True)
    return module


@contextmanager
def microbatch_seed(seed: int, microbatch: int, *, stage: int = 0) -> Iterator[None]:
    """What ``Pipeline.step(seed=seed)`` does around each forward, for a loop without a pipeline.

    Afterwards the random number generators are as they were before.

    Args:
        seed: another one for every step and every replica, the same on all ranks of a pipeline.
        microbatch: which microbatch of the step.
        stage: keeps apart what the modules of different stages draw that are not seeded.
    """
    with _generators(_joined(_hash(seed, microbatch), stage)):
        yield


def on_this_thread(compute: Callable[[], None]) -> Callable[[], None]:
    """``compute``, to be called on the thread that asks for it. What another thread draws
    meanwhile, or a checkpoint there puts back, would change the numbers.

    Raises:
        ParameterError: it is called on another thread.
    """
    thread = get_ident()

    def checked() -> None:
        if get_ident() != thread:
            raise ParameterError(
                "step(seed=...) needs all computation on one thread, whose random numbers it "
                "controls; leave the seed out, or run the parts of an overlap one by one"
            )
        compute()

    return checked


class _Draws:
    """The hooks of one module. A copy of the module gets a copy of them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._kept: list[list[torch.Tensor] | None] = []

    def begin(self, module: nn.Module, _: object) -> None:
        """Before the forward."""
        if not module.training:
            self._kept.append(None)
            return
        base = _microbatch(torch.initial_seed())
        if base is None:
            self._kept.append(None)
            raise ParameterError(
                f"the seeded module {self._name!r} is not told which microbatch it works on: call "
                "step(seed=...), or use `with microbatch_seed(seed, microbatch)` around the "
                "forward; an activation checkpoint must preserve the state of the generators"
            )
        self._kept.append(_states())
        torch.manual_seed(_joined(_hash(base, self._name), 0))

    def end(self, *_: object) -> None:
        """After the forward, also one that failed."""
        kept = self._kept.pop() if self._kept else None
        if kept is not None:
            _restore(kept)


@contextmanager
def _generators(seed: int) -> Iterator[None]:
    kept = _states()
    torch.manual_seed(seed)
    try:
        yield
    finally:
        _restore(kept)


def _states() -> list[torch.Tensor]:
    """Of the CPU's generator, and of that of the device in use."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states.append(torch.cuda.get_rng_state())
    return states


def _restore(states: list[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state(states[1])


def _hash(*parts: int | str) -> int:
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=4).digest())


def _joined(base: int, stage: int) -> int:
    """A generator's seed. The upper half tells what modules draw their seeds from. The CPU's
    generator goes by the lower half alone, which therefore looks random, and can be recognised."""
    return base << 32 | (_hash(base) ^ (_MARK | stage))


def _microbatch(seed: int) -> int | None:
    """The upper half of a seed that was made here, else None."""
    base = seed >> 32
    is_ours = (seed & _HALF ^ _hash(base)) & ~0xFFFF == _MARK
    return base if is_ours else None
