"""A schedule, walked through action by action: open it in an editor that knows ``# %%`` cells."""

# %% Four stages on two ranks, all in this process; they go down the ranks and up again.
from pathlib import Path

import torch
from torch import nn

from fullbore.controller import PipelineParallelism
from fullbore.view import Panel, save_picture, simulated

torch.manual_seed(0)
stages = [nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(4)]
pp = PipelineParallelism(
    2,
    stages,
    schedule="zbv",
    batch_size=16,
    microbatch_size=4,
    loss_fn=nn.functional.mse_loss,
    names="{}.{}".format,
    profile=True,
)
x, y = torch.randn(16, 8), torch.randn(16, 8)
print(pp.schedule)

# %% Begin a step, and look at what can run first.
stepping = pp.start(x, y)
print("ready:", stepping.ready)

# %% Run one action; its output is there at once.
stepping.run("0F0")
print("stage 0 gave", tuple(stepping.output(0, 0).shape), "for microbatch 0")
print("ready:", stepping.ready)

# %% An order that cannot be right is refused before anything runs.
try:
    stepping.run("3I0")
except ValueError as error:
    print(error)

# %% Go on until the first loss; the rest of the schedule waits.
for action in stepping:
    if stepping.losses:
        print("after", action, "the losses are", stepping.losses)
        break

# %% Run what is left. The gradients are where they always are.
print("loss:", stepping.finish())
print("gradient:", stages[0][0].bias.grad)

# %% A whole step at once gives the same. When did which action run, and when would two processes?
pp.zero_grad()
print("loss:", pp.run(x, y))
profile = pp.profile()
measured = Panel("measured: ranks take turns", pp.schedule, profile.timeline(), unit="s")
expected = simulated(pp.schedule, profile.costs(), title="expected of two processes")
save_picture([measured, expected], "timeline.svg")
print("wrote", Path("timeline.svg").resolve())

# %% The end.
pp.close()
