"""Can all ranks come to the end of their programs, and on which transports?"""

from __future__ import annotations

from itertools import islice

from fullbore.ir import Form
from fullbore.verify.channels import CHANNEL_ORDER, Channels
from fullbore.verify.findings import Example, Report, Rule, shown
from fullbore.verify.machine import Tracks, Wait
from fullbore.verify.structure import Survey

CANNOT_RUN = Rule(
    "cannot-run",
    "Some order of all ranks' actions gives each action what it needs before it starts.",
    "move an action of the cycle behind what it waits for",
    Example("0B0,0F0"),
)
DEADLOCK = Rule(
    "deadlock",
    "The transfers complete on the transport that was asked for. The strictest is rendezvous: "
    "sends and receives block, in the order of the program, until they meet.",
    "let one rank of the cycle receive before it sends, or batch its send with its receive",
    Example(
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
        "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1",
        ranks=(0, 1),
        num_microbatches=2,
        form=Form.LOWERED,
    ),
)

RULES = (CANNOT_RUN, DEADLOCK)

MODELS = ("rendezvous", "per_edge", "buffered")

_BEHIND = 16  # ranks that wait behind a cycle and are named with it

Waits = dict[int, Wait]


def check_order(survey: Survey, channels: Channels, report: Report, *, model: str) -> None:
    """Report the ranks that wait for each other for ever, one finding a cycle.

    Where the ends of a channel disagree about the order, transfers that block can only fail, so
    that just the dependencies are looked at.
    """
    if survey.schedule.form is Form.COMPUTE or report.found(CHANNEL_ORDER):
        model = "buffered"
    waits = Tracks(survey, channels, model).blocked()
    rule = CANNOT_RUN
    if waits and model != "buffered":
        dependencies = Tracks(survey, channels, "buffered").blocked()
        rule = CANNOT_RUN if dependencies else DEADLOCK
        waits = dependencies or waits
    prefix = f"with {model} transfers, " if rule is DEADLOCK else ""
    for cycle, behind in _cycles(waits):
        message = prefix + "; ".join(_told(waits, rank) for rank in cycle)
        if behind:
            named = "; ".join(_told(waits, rank) for rank in islice(behind, _BEHIND))
            more = f"; and {len(behind) - _BEHIND} more" if len(behind) > _BEHIND else ""
            message += f". Behind them, {named}{more}"
        first = waits[cycle[0]]
        report.add(rule, message, rank=cycle[0], step=first.step, action=first.action)


def _told(waits: Waits, rank: int) -> str:
    wait = waits[rank]
    where = f"rank {wait.on}" if wait.on != rank else "later on the same rank"
    return f"rank {rank} at {shown(wait.action)} waits for {wait.giver} ({where})"


def _cycles(waits: Waits) -> list[tuple[list[int], list[int]]]:
    """The cycles of ranks that wait for each other, and the ranks that wait behind each.

    Whoever is waited for waits as well, so every path ends in a cycle.
    """
    cycles: list[tuple[list[int], list[int]]] = []
    belongs: dict[int, int] = {}  # rank -> index of its cycle
    for start in sorted(waits):
        path: dict[int, None] = {}
        rank = start
        while rank not in belongs and rank not in path:
            path[rank] = None
            rank = waits[rank].on
        if rank not in belongs:
            ranks = list(path)
            cycle = ranks[ranks.index(rank) :]
            first = cycle.index(min(cycle))
            cycles.append((cycle[first:] + cycle[:first], []))
            belongs |= dict.fromkeys(cycle, len(cycles) - 1)
        index = belongs[rank]
        waiting = [rank for rank in path if rank not in belongs]
        cycles[index][1].extend(waiting)
        belongs |= dict.fromkeys(waiting, index)
    return cycles
