"""Case C06: targets are masked unevenly, so that some microbatches have none at all."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tests.reference import WIDTH, linear_tanh, local_pipeline
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fullbore as fb

pytestmark = pytest.mark.torch

IGNORED = -100
FAMILIES = [name for name in fb.FAMILIES if name != "forward_only"]


def per_token(output: Tensor, target: Tensor, *, tokens: int) -> Tensor:
    """The microbatch's share of the mean over all tokens of the batch that count."""
    return cross_entropy(output, target, ignore_index=IGNORED, reduction="sum") / tokens


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scale_grads", [False, True])
def test_c06_a_global_normaliser_equals_the_whole_batch(family: str, scale_grads: bool):
    schedule = fb.build(family, num_ranks=2, num_microbatches=4)
    modules = linear_tanh(schedule.num_stages)
    whole = nn.Sequential(*linear_tanh(schedule.num_stages))
    x, target = torch.randn(8, WIDTH), torch.tensor([1, IGNORED, *[IGNORED] * 4, 3, 7])
    tokens = int((target != IGNORED).sum())
    wanted = cross_entropy(whole(x), target, ignore_index=IGNORED)
    wanted.backward()

    pipe = local_pipeline(modules, schedule, loss_fn=per_token, scale_grads=scale_grads)
    # Either switch the weights off, or give them: the loss function has normalised already.
    weights = [1.0] * 4 if scale_grads else None
    out = pipe.step(x, target=target, loss_kwargs={"tokens": tokens}, loss_weights=weights)

    torch.testing.assert_close(out.loss, wanted.detach())
    assert out.losses is not None
    assert [float(loss) for loss in out.losses[1:3]] == [0.0, 0.0]
    found = nn.ModuleList(modules).parameters()
    for p, q in zip(found, whole.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-5, atol=1e-7)


def test_c06_losses_of_the_same_step_are_the_same_in_evaluation():
    schedule = fb.build("1f1b", num_ranks=2, num_microbatches=4)
    x, target = torch.randn(8, WIDTH), torch.tensor([1, IGNORED, *[IGNORED] * 4, 3, 7])
    loss_fn = partial(per_token, tokens=3)
    pipe = local_pipeline(linear_tanh(2), schedule, loss_fn=loss_fn, scale_grads=False)
    trained, judged = pipe.step(x, target=target), pipe.eval(x, target=target)
    assert trained.losses is not None
    assert judged.losses is not None
    assert all(map(torch.equal, trained.losses, judged.losses))
