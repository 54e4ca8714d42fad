"""The planner: the best schedule for given costs and memory, and how good it can be at most."""

from fullbore.plan.bounds import Bounds, bounds
from fullbore.plan.candidate import Candidate
from fullbore.plan.files import PlanFile, dump_plan, load_plan, save_plan
from fullbore.plan.frontier import LIMITS, Frontier, Point, frontier
from fullbore.plan.instance import Instance, make_instance
from fullbore.plan.joint import Joint, joint
from fullbore.plan.layers import LayerCosts, layer_costs, transformer
from fullbore.plan.memory import Memory, parse_memory
from fullbore.plan.partition import Layer, Partition, even, partition
from fullbore.plan.search import EFFORT, Plan, Progress, plan

__all__ = [
    "EFFORT",
    "LIMITS",
    "Bounds",
    "Candidate",
    "Frontier",
    "Instance",
    "Joint",
    "Layer",
    "LayerCosts",
    "Memory",
    "Partition",
    "Plan",
    "PlanFile",
    "Point",
    "Progress",
    "bounds",
    "dump_plan",
    "even",
    "frontier",
    "joint",
    "layer_costs",
    "load_plan",
    "make_instance",
    "parse_memory",
    "partition",
    "plan",
    "save_plan",
    "transformer",
]
