"""Brings the ranks' measurements together, on one clock."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from fullbore.errors import ParameterError
from fullbore.ir import Schedule
from fullbore.runtime.collective import Gathering
from fullbore.runtime.transport.p2p_rendezvous import machine
from fullbore.sim import Profile, Sample


def gather_profile(
    schedule: Schedule,
    steps: Iterable[Mapping[int, Sequence[Sample]]],
    gathering: Gathering,
    epoch: int,
) -> Profile:
    """The profile of all ranks, from each one's own steps. All ranks call it together.

    Raises:
        ParameterError: no step was measured, or the ranks measured different ones.
    """
    offset = _offset(gathering, epoch)
    own = [{rank: _moved(samples, offset) for rank, samples in step.items()} for step in steps]
    # As bytes: a message's plain values travel with its layout, which is remembered.
    text = torch.frombuffer(bytearray(pickle.dumps(own)), dtype=torch.uint8)
    parts: list[list[dict[int, Any]]] = [
        pickle.loads(bytes(part.numpy())) for part in gathering.run(text, epoch)
    ]
    counts = {len(part) for part in parts}
    if counts == {0}:
        raise ParameterError("nothing was measured yet; call step() before profile()")
    if len(counts) > 1:
        raise ParameterError(f"the ranks measured different numbers of steps: {sorted(counts)}")
    found = []
    for step in zip(*parts, strict=True):
        by_rank = {rank: samples for part in step for rank, samples in part.items()}
        found.append(tuple(tuple(by_rank[rank]) for rank in range(schedule.num_ranks)))
    return Profile(schedule, tuple(found))


def _moved(samples: Sequence[Sample], offset: float) -> list[Sample]:
    return [
        sample._replace(
            start=sample.start + offset, ready=sample.ready + offset, end=sample.end + offset
        )
        for sample in samples
    ]


def _offset(gathering: Gathering, epoch: int) -> float:
    """What to add to this process's clock to get that of rank 0's host. Processes of one host share
    a clock."""
    on_one_host = len(set(gathering.run(machine(), epoch))) == 1
    return 0.0 if on_one_host else gathering.clock_offset(time.perf_counter, epoch)
