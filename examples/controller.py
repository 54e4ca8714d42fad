"""One script owns a pipeline: it trains, evaluates, looks inside, saves, and survives a lost rank.

python examples/controller.py                              # all ranks in this process
python examples/controller.py --engine monarch             # each in a process, as an actor
python examples/controller.py --engine monarch --kill-one  # one of which dies on the way
"""

import argparse
import os
import signal
import tempfile
from functools import partial

import torch
from torch import Tensor, nn

from fullbore.controller import Factory, HostedStage, PipelineParallelism


def build_stage(index: int) -> nn.Module:  # called where the stage lives
    torch.manual_seed(index)
    return nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))


def batch(seed: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(seed))
    return x, x.roll(1, dims=1)


def process(stage: HostedStage) -> int:
    return os.getpid()


parser = argparse.ArgumentParser()
parser.add_argument("--engine", choices=["local", "monarch"], default="local")
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--kill-one", action="store_true", help="end a rank half-way; with monarch")
given = parser.parse_args()

pp = PipelineParallelism(2, [Factory(build_stage, i) for i in range(4)], schedule="zbv",
                         batch_size=16, microbatch_size=4, loss_fn=nn.functional.mse_loss,
                         optimizers=partial(torch.optim.AdamW, lr=3e-3), recover=True,
                         names="{}.{}".format, engine=given.engine)  # fmt: skip
with pp, tempfile.TemporaryDirectory() as folder:
    for step in range(given.steps):
        if given.kill_one and given.engine == "monarch" and step == given.steps // 2:
            os.kill(pp.each_stage(process)[1], signal.SIGKILL)
        pp.zero_grad()
        loss, norm = pp.run(*batch(step)), pp.clip_grad_norm(1.0)
        pp.step()
        print(f"step {step}: loss {loss:.6f}, gradient norm {norm:.6f}")
    print(f"held out: loss {pp.eval(*batch(-1)).loss:.6f}")
    weight, gradient = pp.get_parameter("3.2.weight"), pp.gradients()["3.2.weight"]
    assert gradient is not None
    print(f"3.2.weight: {tuple(weight.shape)}, {weight[0, :3]}; its gradient {gradient[0, :3]}")
    pp.save_checkpoint(f"{folder}/last", extra={"steps": given.steps})
    print("loaded:", pp.load_checkpoint(f"{folder}/last"))
