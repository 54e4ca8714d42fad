"""What a schedule is: kinds, actions, placements, programs and the dependency rule."""

from fullbore.ir.action import Action, find_mate, fuse, mate
from fullbore.ir.deps import Dependencies, Fact
from fullbore.ir.kinds import KINDS, Group, Kind, KindInfo
from fullbore.ir.order import Blocked, Order, executable_order
from fullbore.ir.placement import Placement
from fullbore.ir.schedule import Form, Program, Schedule

__all__ = [
    "KINDS",
    "Action",
    "Blocked",
    "Dependencies",
    "Fact",
    "Form",
    "Group",
    "Kind",
    "KindInfo",
    "Order",
    "Placement",
    "Program",
    "Schedule",
    "executable_order",
    "find_mate",
    "fuse",
    "mate",
]
