"""The kinds of action, one row each. Everything that asks what a kind is reads this table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from types import MappingProxyType


class Kind(IntEnum):
    """What an action does. The names are the text of the ``torch`` dialect."""

    F = 0
    B = 1
    I = 2  # noqa: E741 - the field's name for the input-gradient half of a backward
    W = 3
    SEND_F = 4
    RECV_F = 5
    SEND_B = 6
    RECV_B = 7
    UNSHARD = 8
    RESHARD = 9
    REDUCE_GRAD = 10
    OVERLAP_F_B = 11
    SEND_F_RECV_B = 12
    SEND_B_RECV_F = 13


class Group(Enum):
    """Which resource an action occupies."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    SHARDING = "sharding"


@dataclass(frozen=True, slots=True)
class KindInfo:
    """One row of the table.

    Attributes:
        group: the resource that the action occupies.
        meaning: one line for people.
        has_microbatch: the action belongs to one microbatch.
        parts: the kinds that a fused action is made of, in the order of its name; empty for
            a plain action. An ``OVERLAP_F_B`` may hold an ``I`` in place of the ``B``.
        mate: for a transfer, the kind at the other end.
        stage_step: for a transfer, the mate's stage minus this action's stage.
    """

    group: Group
    meaning: str
    has_microbatch: bool = True
    parts: tuple[Kind, ...] = ()
    mate: Kind | None = None
    stage_step: int = 0

    @property
    def fused(self) -> bool:
        """Whether an action of this kind is made of other actions."""
        return bool(self.parts)


def _table() -> Mapping[Kind, KindInfo]:
    k, compute, comm, shard = Kind, Group.COMPUTE, Group.COMMUNICATION, Group.SHARDING
    rows = {
        k.F: KindInfo(compute, "forward"),
        k.B: KindInfo(compute, "full backward"),
        k.I: KindInfo(compute, "backward for the stage's input"),
        k.W: KindInfo(compute, "backward for the stage's weights, after its I"),
        k.SEND_F: KindInfo(comm, "send activations to the next stage", True, (), k.RECV_F, 1),
        k.RECV_F: KindInfo(
            comm, "receive activations from the stage before", True, (), k.SEND_F, -1
        ),
        k.SEND_B: KindInfo(comm, "send gradients to the stage before", True, (), k.RECV_B, -1),
        k.RECV_B: KindInfo(comm, "receive gradients from the next stage", True, (), k.SEND_B, 1),
        k.UNSHARD: KindInfo(shard, "all-gather the stage's parameters", False),
        k.RESHARD: KindInfo(shard, "free the gathered parameters", False),
        k.REDUCE_GRAD: KindInfo(shard, "reduce the stage's gradients", False),
        k.OVERLAP_F_B: KindInfo(compute, "one F and one B or I, run together", False, (k.F, k.B)),
        k.SEND_F_RECV_B: KindInfo(
            comm, "send activations and receive gradients at once", False, (k.SEND_F, k.RECV_B)
        ),
        k.SEND_B_RECV_F: KindInfo(
            comm, "send gradients and receive activations at once", False, (k.SEND_B, k.RECV_F)
        ),
    }
    return MappingProxyType(rows)


KINDS: Mapping[Kind, KindInfo] = _table()
