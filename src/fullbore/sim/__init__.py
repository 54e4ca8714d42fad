"""When each action runs: a schedule is order, a timeline is order plus time."""

from fullbore.sim.causes import Causes, Event
from fullbore.sim.costs import Costs, Table, TableCosts, UniformCosts, parse_costs
from fullbore.sim.engine import UNIT_COSTS, simulate, unit_timeline
from fullbore.sim.files import dump_costs, load_costs, read_costs, save_costs
from fullbore.sim.memory import Level, memory_over_time
from fullbore.sim.metrics import Idle, Metrics, Peak, measure
from fullbore.sim.profile import Profile, Sample, Spent, spent
from fullbore.sim.profile_files import load_profile, load_torch_traces, save_profile
from fullbore.sim.report import ActionTimes, Report, report
from fullbore.sim.timeline import Slot, Timeline, Transfer

__all__ = [
    "UNIT_COSTS",
    "ActionTimes",
    "Causes",
    "Costs",
    "Event",
    "Idle",
    "Level",
    "Metrics",
    "Peak",
    "Profile",
    "Report",
    "Sample",
    "Slot",
    "Spent",
    "Table",
    "TableCosts",
    "Timeline",
    "Transfer",
    "UniformCosts",
    "dump_costs",
    "load_costs",
    "load_profile",
    "load_torch_traces",
    "measure",
    "memory_over_time",
    "parse_costs",
    "read_costs",
    "report",
    "save_costs",
    "save_profile",
    "simulate",
    "spent",
    "unit_timeline",
]
