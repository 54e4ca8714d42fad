"""When each action runs: a schedule is order, a timeline is order plus time."""

from fullbore.sim.engine import UNIT_COSTS, earliest_start, unit_timeline
from fullbore.sim.timeline import Slot, Timeline

__all__ = ["UNIT_COSTS", "Slot", "Timeline", "earliest_start", "unit_timeline"]
