"""The longest paths of an instance: how early each action can start, and how much must follow it.

Besides what an action needs, the order of a stage's microbatches counts, and memory: where K of a
stage's activations fill its rank, F of microbatch k + K comes after I of microbatch k.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fullbore.plan.instance import Instance


@dataclass(frozen=True, slots=True)
class Chains:
    """By stage, a list with a number for each microbatch.

    Attributes:
        instance: whose paths they are.
        forward, backward: the earliest ends of F and I.
        after_forward, after_backward: the longest path from their ends to the end of the step.
    """

    instance: Instance
    forward: list[list[float]]
    backward: list[list[float]]
    after_forward: list[list[float]]
    after_backward: list[list[float]]

    @property
    def makespan(self) -> float:
        """The length of the longest path."""
        return max(
            end + rest
            for ends, rests in zip(self.backward, self.after_backward, strict=True)
            for end, rest in zip(ends, rests, strict=True)
        )

    def jobs(self, stage: int) -> Iterator[tuple[float, float, float]]:
        """Of every action of a stage: its earliest start, its length, the least that follows."""
        of = self.instance
        f, i, w = of.F[stage], of.I[stage], of.W[stage]
        for end, rest in zip(self.forward[stage], self.after_forward[stage], strict=True):
            yield end - f, f, rest
        for end, rest in zip(self.backward[stage], self.after_backward[stage], strict=True):
            yield end - i, i, rest
            yield end, w, 0.0


def chains(of: Instance) -> Chains:
    """The longest paths."""
    stages, m = range(of.placement.num_stages), of.num_microbatches
    room = []
    for s in stages:
        capacity = of.capacity[of.placement.ranks[s]]
        full = capacity * (1 + 1e-9) / of.held[s] if of.held[s] else m
        room.append(int(min(full, m)))
    forward, backward = _earliest(of, room)
    after_forward, after_backward = _rest(of, room)
    return Chains(of, forward, backward, after_forward, after_backward)


def _earliest(of: Instance, room: list[int]) -> tuple[list[list[float]], list[list[float]]]:
    last = len(room) - 1
    forward: list[list[float]] = [[] for _ in room]
    backward: list[list[float]] = [[] for _ in room]
    done_f, done_b = [0.0] * len(room), [0.0] * len(room)
    for k in range(of.num_microbatches):
        at = 0.0
        for s, length in enumerate(of.F):
            start = max(at, done_f[s])
            if k >= room[s]:
                start = max(start, backward[s][k - room[s]])
            done_f[s] = end = start + length
            forward[s].append(end)
            at = end + of.down[s]
        at = done_f[last]
        for s in range(last, -1, -1):
            # F of the same microbatch comes before: the way down from there is never shorter.
            start = max(at, done_b[s])
            done_b[s] = end = start + of.I[s]
            backward[s].append(end)
            at = end + (of.up[s - 1] if s else 0.0)
    return forward, backward


def _rest(of: Instance, room: list[int]) -> tuple[list[list[float]], list[list[float]]]:
    m, last = of.num_microbatches, len(room) - 1
    forward = [[0.0] * m for _ in room]
    backward = [[0.0] * m for _ in room]
    for k in range(m - 1, -1, -1):
        for s, length in enumerate(of.I):
            rest = of.W[s]
            if s:
                rest = max(rest, of.up[s - 1] + of.I[s - 1] + backward[s - 1][k])
            if k + 1 < m:
                rest = max(rest, length + backward[s][k + 1])
            if k + room[s] < m:
                rest = max(rest, of.F[s] + forward[s][k + room[s]])
            backward[s][k] = rest
        for s in range(last, -1, -1):
            rest = of.I[s] + backward[s][k]
            if s < last:
                rest = max(rest, of.down[s] + of.F[s + 1] + forward[s + 1][k])
            if k + 1 < m:
                rest = max(rest, of.F[s] + forward[s][k + 1])
            forward[s][k] = rest
    return forward, backward
