"""The planner: the best schedule for given costs and memory, and how good it can be at most."""

from fullbore.plan.bounds import Bounds, bounds
from fullbore.plan.instance import Instance, make_instance

__all__ = ["Bounds", "Instance", "bounds", "make_instance"]
