"""Runs a stage with full backwards and with split ones, and compares what they leave."""

from __future__ import annotations

from collections import Counter

import torch
from tests.runtime.backward.cases import Case
from torch import Tensor

from fullbore.runtime.backward import SplitBackward, full_backward

MICROBATCHES = 2


class Record:
    """One module's gradients, and what its hooks saw."""

    def __init__(self, case: Case) -> None:
        self.module = case.make()
        self.hooks: Counter[tuple[str, str]] = Counter()
        self.finished: list[str] = []
        self.forwards: Counter[str] = Counter()
        self.inputs: list[Tensor] = []
        for name, weight in self.module.named_parameters():
            if weight.requires_grad:
                weight.register_hook(lambda _, name=name: self.hooks.update([("tensor", name)]))
                weight.register_post_accumulate_grad_hook(
                    lambda _, name=name: self.finished.append(name)
                )
        for name, part in self.module.named_modules():
            if type(part).__name__ != "OptimizedModule":
                part.register_forward_hook(lambda *_, name=name: self.forwards.update([name]))

    def forward(self, case: Case, microbatch: int) -> tuple[list[Tensor], list[Tensor | None]]:
        inputs = case.microbatch(microbatch)
        self.inputs += inputs
        out = self.module(*inputs)
        outputs = list(out) if isinstance(out, tuple | list) else [out]
        torch.manual_seed(200 + microbatch)
        return outputs, [torch.randn_like(o) if o.requires_grad else None for o in outputs]

    @property
    def gradients(self) -> dict[str, Tensor | None]:
        found = {name: weight.grad for name, weight in self.module.named_parameters()}
        return found | {f"input {i}": x.grad for i, x in enumerate(self.inputs)}


def run_whole(case: Case) -> Record:
    record = Record(case)
    for microbatch in range(MICROBATCHES):
        full_backward(*record.forward(case, microbatch))
    return record


def run_split(case: Case) -> Record:
    """Also checks which gradients wait, and that none is added twice."""
    record = Record(case)
    trained = {name for name, weight in record.module.named_parameters() if weight.requires_grad}
    for microbatch in range(MICROBATCHES):
        before = len(record.inputs)
        outputs, gradients = record.forward(case, microbatch)
        split = SplitBackward(outputs, record.inputs[before:])
        del outputs
        record.finished.clear()
        split.input_backward(gradients)
        assert split.deferred == case.waits
        in_i = record.finished.copy()
        assert set(in_i) == {name for name in trained if case.is_early(name)}
        split.weight_backward()
        assert split.deferred == 0
        assert Counter(record.finished) == Counter(set(record.finished))
    return record


def assert_same(split: Record, whole: Record) -> None:
    """Bit for bit, with the same strides, hook calls and forwards."""
    assert split.gradients.keys() == whole.gradients.keys()
    for name, expected in whole.gradients.items():
        assert_identical(split.gradients[name], expected)
    assert split.hooks == whole.hooks
    assert split.forwards == whole.forwards


def assert_identical(found: Tensor | None, expected: Tensor | None) -> None:
    assert (found is None) == (expected is None)
    if found is None or expected is None:
        return
    assert found.layout == expected.layout
    if found.layout is torch.strided:
        assert found.stride() == expected.stride()
    assert torch.equal(found.to_dense(), expected.to_dense())
