"""Transfers: each send has its receive, and both ends of a channel agree on the order.

A channel is a directed pair of ranks. Its messages have no names on the wire, so the n-th receive
gets what the n-th send sent.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from fullbore.ir import KINDS, Action, Form, Kind, mate
from fullbore.verify.findings import Example, Report, Rule, listed
from fullbore.verify.structure import Survey

SEND_WITHOUT_RECEIVE = Rule(
    "send-without-receive",
    "Every send has its receive on the rank of the other stage.",
    "add the receive, or leave the send out",
    Example("0F0,0SEND_F0\n1F0", ranks=(0, 1), form=Form.LOWERED, forward_only=True),
)
RECEIVE_WITHOUT_SEND = Rule(
    "receive-without-send",
    "Every receive has its send on the rank of the other stage.",
    "add the send, or leave the receive out",
    Example("0F0\n1RECV_F0,1F0", ranks=(0, 1), form=Form.LOWERED, forward_only=True),
)
MISSING_TRANSFER = Rule(
    "missing-transfer",
    "In LOWERED form, what a stage needs from a stage on another rank is sent and received.",
    "add the send and the receive, or lower the schedule from its COMPUTE form",
    Example("0F0\n1F0", ranks=(0, 1), form=Form.LOWERED, forward_only=True),
)
CHANNEL_ORDER = Rule(
    "channel-order",
    "The messages from one rank to another are received in the order in which they are sent; "
    "otherwise each would be taken for the other.",
    "move the receive, or the send, so that both ranks have the same order",
    Example(
        "0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F1,1F1,1RECV_F0,1F0",
        ranks=(0, 1),
        num_microbatches=2,
        form=Form.LOWERED,
        forward_only=True,
    ),
)

RULES = (SEND_WITHOUT_RECEIVE, RECEIVE_WITHOUT_SEND, MISSING_TRANSFER, CHANNEL_ORDER)


Transfer = tuple[int, int, int, Kind, int]
"""The step of the send and of the receive, and the receive's stage, kind and microbatch."""

Channels = dict[tuple[int, int], list[Transfer]]
"""The transfers from one rank to another, in the order in which they are sent."""


def check_channels(survey: Survey, report: Report) -> Channels:
    """Report what is wrong with the transfers; those that have both ends, by channel."""
    channels: defaultdict[tuple[int, int], list[Transfer]] = defaultdict(list)
    ranks = survey.schedule.placement.ranks
    if survey.schedule.form is Form.COMPUTE:
        return channels
    for stage, (rank, following) in enumerate(pairwise(ranks)):
        if rank != following:
            channels[rank, following] += _transfers(survey, report, Kind.SEND_F, stage)
            channels[following, rank] += _transfers(survey, report, Kind.SEND_B, stage + 1)
    for (source, target), transfers in channels.items():
        transfers.sort()
        for first, second in pairwise(transfers):
            if second[1] < first[1]:
                expected, found = Action(*first[2:]), Action(*second[2:])
                message = (
                    f"comes before {expected} at step {first[1]}, but rank {source} sends "
                    f"{mate(expected)} at step {first[0]}, before {mate(found)} at step {second[0]}"
                )
                report.add(CHANNEL_ORDER, message, rank=target, step=second[1], action=found)
                break
    return channels


def _transfers(survey: Survey, report: Report, kind: Kind, stage: int) -> list[Transfer]:
    """What ``stage`` sends with ``kind`` and is received; reports what is not."""
    into, receive = stage + KINDS[kind].stage_step, KINDS[kind].mate
    assert receive is not None
    sends, receives = survey.steps[kind][stage], survey.steps[receive][into]
    if sends.keys() != receives.keys() or len(sends) < survey.schedule.num_microbatches:
        _report_unmatched(survey, report, Action(stage, kind), Action(into, receive))
    return [(step, receives[m], into, receive, m) for m, step in sends.items() if m in receives]


def _report_unmatched(survey: Survey, report: Report, send: Action, receive: Action) -> None:
    """Report sends and receives without the other end, and transfers that lack both."""
    ranks = survey.schedule.placement.ranks
    both = survey.present(send.kind, send.stage), survey.present(receive.kind, receive.stage)
    for rule, end, other, there in (
        (SEND_WITHOUT_RECEIVE, send, receive, both[1]),
        (RECEIVE_WITHOUT_SEND, receive, send, both[0]),
    ):
        for microbatch, step in survey.steps[end.kind][end.stage].items():
            if microbatch not in there:
                action = end._replace(microbatch=microbatch)
                wanted = other._replace(microbatch=microbatch)
                message = f"there is no {wanted} on rank {ranks[other.stage]}"
                report.add(rule, message, rank=ranks[end.stage], step=step, action=action)
    users = (Kind.F,) if receive.kind is Kind.RECV_F else (Kind.B, Kind.I)
    needed = set().union(*(survey.present(kind, receive.stage) for kind in users))
    bare = needed.difference(*both)
    if bare:
        what = "activations" if receive.kind is Kind.RECV_F else "gradients"
        message = (
            f"stage {receive.stage} is not sent the {what} of stage {send.stage} for "
            f"{listed(len(bare), sorted(bare)[:3])}"
        )
        report.add(MISSING_TRANSFER, message, rank=ranks[receive.stage])
