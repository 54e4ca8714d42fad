"""Orders of actions in the shape that torch.distributed.pipelining gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from fullbore.errors import ParameterError
from fullbore.formats import parse_action
from fullbore.ir import KINDS, Action, Form, Kind, Placement, Schedule
from fullbore.ir.kinds import Group


class _ComputationType(StrEnum):
    """The kinds, under torch's names. Equal to torch's members, which are strings too."""

    FORWARD = "F"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    UNSHARD = "UNSHARD"
    RESHARD = "RESHARD"
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"
    FULL_BACKWARD = "B"
    OVERLAP_F_B = "OVERLAP_F_B"
    REDUCE_GRAD = "REDUCE_GRAD"

    @staticmethod
    def from_str(action: str) -> _ComputationType:
        """The kind of that text.

        Raises:
            RuntimeError: there is none.
        """
        try:
            return _ComputationType(action)
        except ValueError:
            raise RuntimeError(f"Invalid computation type {action}") from None


FORWARD = _ComputationType.FORWARD
BACKWARD_INPUT = _ComputationType.BACKWARD_INPUT
BACKWARD_WEIGHT = _ComputationType.BACKWARD_WEIGHT
UNSHARD = _ComputationType.UNSHARD
RESHARD = _ComputationType.RESHARD
SEND_F = _ComputationType.SEND_F
RECV_F = _ComputationType.RECV_F
SEND_B = _ComputationType.SEND_B
RECV_B = _ComputationType.RECV_B
FULL_BACKWARD = _ComputationType.FULL_BACKWARD
OVERLAP_F_B = _ComputationType.OVERLAP_F_B
REDUCE_GRAD = _ComputationType.REDUCE_GRAD
F, I, W, B = FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FULL_BACKWARD  # noqa: E741 - torch's names


class _Action(NamedTuple):
    """An action under torch's names; equal to torch's own of the same content."""

    stage_index: int
    computation_type: _ComputationType
    microbatch_index: int | None = None
    sub_actions: tuple[_Action, ...] | None = None

    def __str__(self) -> str:
        return str(read_action(self))

    def __repr__(self) -> str:
        return str(self)

    @property
    def is_compute_op(self) -> bool:
        """Whether it computes: F, B, I, W or an overlap."""
        return KINDS[read_kind(self.computation_type)].group is Group.COMPUTE

    @staticmethod
    def from_str(action_string: str) -> _Action | None:
        """The action of a text such as ``2F0``; None for blanks.

        Raises:
            FormatError: the text is not, as a whole, an action.
        """
        text = action_string.strip()
        return write_action(parse_action(text)) if text else None


def read_kind(kind: object) -> Kind:
    """The kind that ours or torch's member, a ``Kind``, or the text of one means.

    Raises:
        ParameterError: there is none.
    """
    name = kind.name if isinstance(kind, Kind) else getattr(kind, "value", kind)
    if not isinstance(name, str) or name not in Kind.__members__:
        raise ParameterError(f"Invalid computation type {kind!r}")
    return Kind[name]


def read_action(action: Any) -> Action:
    """One of ours of one with torch's attributes.

    Raises:
        ParameterError: it has not got them, or its kind does not exist.
    """
    if isinstance(action, Action):
        return action
    try:
        kind, parts = read_kind(action.computation_type), action.sub_actions or ()
        stage, microbatch = action.stage_index, action.microbatch_index
    except AttributeError:
        raise ParameterError(
            f"{action!r} is no action; _Action.from_str makes one of a text such as 2F0"
        ) from None
    number = -1 if microbatch is None else microbatch
    return Action(-1 if parts else stage, kind, number, tuple(map(read_action, parts)))


def write_action(action: Action) -> _Action:
    """One with torch's attributes of one of ours."""
    stage, kind, microbatch, parts = action
    return _Action(
        stage,
        _ComputationType(kind.name),
        None if microbatch < 0 else microbatch,
        tuple(map(write_action, parts)) or None,
    )


Order = dict[int, list[_Action | None]]
"""What torch calls a pipeline order: the actions of each rank, None for an idle slot."""


Frozen = tuple[tuple[int, tuple[_Action | None, ...]], ...]


class Shown:
    """A pipeline order that a user may look at, and edit.

    Args:
        order: what it is.
        own: it is the user's own, not one that we wrote.
    """

    def __init__(self, order: Order, *, own: bool = False) -> None:
        self.order = order
        self._written = None if own else self._freeze()

    def edits(self) -> Frozen | None:
        """What it holds, if that is not what we wrote."""
        now = self._freeze()
        return None if now == self._written else now

    def _freeze(self) -> Frozen:
        return tuple((rank, tuple(actions)) for rank, actions in self.order.items())


def write_order(schedule: Schedule) -> Order:
    """The programs by rank. There are no idle slots: they follow from the order."""
    return {rank: [write_action(a) for a in p] for rank, p in enumerate(schedule.programs)}


def read_order(
    order: Mapping[int, Sequence[Any]], *, form: Form, num_microbatches: int, name: str
) -> Schedule:
    """The schedule of a pipeline order; stages are where they first appear.

    Raises:
        ParameterError: the ranks are not 0 to P-1, something is no action, or a communication
            action is in a compute-only order.
    """
    if sorted(order) != list(range(len(order))):
        raise ParameterError(f"{name}: the ranks must be 0 to P-1, got {sorted(order)}")
    programs: list[tuple[Action, ...]] = []
    for rank in range(len(order)):
        found = [(at, read_action(a)) for at, a in enumerate(order[rank]) if a is not None]
        strange = next((x for x in found if KINDS[x[1].kind].group is not Group.COMPUTE), None)
        if form is Form.COMPUTE and strange is not None:
            raise ParameterError(
                f"rank {rank}, position {strange[0]}: {strange[1]} has no place in an order of "
                "computation alone; give format='compute_comms' for an order "
                "that has its communication"
            )
        programs.append(tuple(action for _, action in found))
    backward = {Kind.B, Kind.I, Kind.W}
    trains = any(leaf.kind in backward for p in programs for a in p for leaf in a.leaves)
    return Schedule(
        tuple(programs),
        Placement.infer(programs),
        num_microbatches,
        form,
        forward_only=not trains,
        name=name,
    )
