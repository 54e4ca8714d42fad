"""The ranks of a run as torchrun starts them, on one machine or several."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.distributed as dist

from fullbore.errors import ParameterError
from fullbore.runtime.transport import P2PTransport
from fullbore.train.director import Director
from fullbore.train.link import GroupLink
from fullbore.train.membership import Membership
from fullbore.train.messages import Outcome
from fullbore.train.rank import train_ranks
from fullbore.train.settings import Settings


def train_member(settings: Settings, director: Director | None, membership: Membership) -> Outcome:
    """Play one rank.

    Args:
        settings: of the run.
        director: on rank 0.
        membership: of this process.

    Raises:
        ParameterError: the schedule is not for as many ranks as there are processes.
        ExecutionError: a rank failed.
    """
    if membership.size != settings.schedule.num_ranks:
        raise ParameterError(
            f"the schedule is for {settings.schedule.num_ranks} ranks, but torchrun started "
            f"{membership.size}; make --ranks and --nproc-per-node agree"
        )
    if settings.transport not in ("auto", "p2p"):
        raise ParameterError(
            f"--transport {settings.transport} is not for processes that torchrun started; "
            "leave it out"
        )
    torch.set_num_threads(settings.threads)
    backend = "gloo"
    if settings.device == "cuda":
        device = f"cuda:{membership.local_rank}"
        torch.cuda.set_device(device)
        settings, backend = replace(settings, device=device), "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend)
    try:
        objects = dist.new_group(backend="gloo")
        assert objects is not None
        link = GroupLink(objects, None if director is None else director.answer)
        transport = P2PTransport(dist.group.WORLD)
        outcome = train_ranks(transport, [membership.rank], settings, link)
        transport.close()
    finally:
        dist.destroy_process_group()
    return outcome
