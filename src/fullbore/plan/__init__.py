"""The planner: the best schedule for given costs and memory, and how good it can be at most."""

from fullbore.plan.bounds import Bounds, bounds
from fullbore.plan.candidate import Candidate
from fullbore.plan.instance import Instance, make_instance
from fullbore.plan.search import EFFORT, Plan, plan

__all__ = ["EFFORT", "Bounds", "Candidate", "Instance", "Plan", "bounds", "make_instance", "plan"]
