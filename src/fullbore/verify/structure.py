"""Each action by itself: does it exist, does it belong here, is it the only one of its kind?

What passes is recorded in a ``Survey``, the index of a schedule that all other rules read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from fullbore.ir import KINDS, Action, Form, Group, Kind, Schedule
from fullbore.verify.findings import Example, Report, Rule, shown

STAGE_RANGE = Rule(
    "stage-range",
    "An action names a stage from 0 to S-1.",
    "correct the stage, or the placement if a stage is missing from it",
    Example("0F0,0B0,5F0"),
)
WRONG_RANK = Rule(
    "wrong-rank",
    "A stage lives on one rank, the one that the placement names, and runs nowhere else.",
    "move the action to the stage's rank, or change the placement",
    Example("0F0,0B0,1F0\n1B0", ranks=(0, 1)),
)
MICROBATCH_RANGE = Rule(
    "microbatch-range",
    "An action names a microbatch from 0 to M-1.",
    "correct the microbatch, or num_microbatches",
    Example("0F0,0F7,0B0"),
)
MICROBATCH_ABSENT = Rule(
    "microbatch-absent",
    "Computations and transfers say which microbatch they are for.",
    "write the microbatch after the kind, as in 0F3",
    Example("0F0,0B0,0F"),
)
MICROBATCH_UNEXPECTED = Rule(
    "microbatch-unexpected",
    "UNSHARD, RESHARD and REDUCE_GRAD are for a whole stage and name no microbatch.",
    "leave the microbatch out",
    Example("0F0,0B0,0REDUCE_GRAD0", form=Form.LOWERED),
)
NOT_IN_FORM = Rule(
    "not-in-form",
    "A schedule in COMPUTE form holds no sends and receives; lowering inserts them.",
    "leave it out, or mark the schedule as LOWERED",
    Example("0F0,0SEND_F0,0B0\n1F0,1B0", ranks=(0, 1)),
)
BACKWARD_IN_FORWARD_ONLY = Rule(
    "backward-in-forward-only",
    "A forward-only schedule runs no backward, moves no gradients and reduces none.",
    "leave it out, or clear forward_only",
    Example("0F0,0B0", forward_only=True),
)
TRANSFER_NOWHERE = Rule(
    "transfer-nowhere",
    "A transfer leads from one stage to the next or back; nothing lies before the first stage "
    "or beyond the last.",
    "leave the transfer out",
    Example("0RECV_F0,0F0,0B0", form=Form.LOWERED),
)
TRANSFER_WITHIN_RANK = Rule(
    "transfer-within-rank",
    "Two neighbouring stages on one rank hand over directly, without a transfer.",
    "leave the transfer out",
    Example("0F0,0SEND_F0,1F0,1B0,0B0", ranks=(0, 0), form=Form.LOWERED),
)
DUPLICATE = Rule(
    "duplicate",
    "The same action for the same stage and microbatch occurs once.",
    "leave one of them out, or correct the microbatch",
    Example("0F0,0F0,0B0"),
)
FUSED_PARTS = Rule(
    "fused-parts",
    "A fused action has exactly the parts that its kind names: OVERLAP_F_B one F and one B or I, "
    "a batched pair its send and its receive. Other actions have no parts.",
    "write the parts as separate actions",
    Example("(0F0)OVERLAP_F_B,0B0"),
)
OVERLAP_DEPENDENT = Rule(
    "overlap-dependent",
    "Overlapped parts run at the same time, so neither may need the other.",
    "overlap a forward with the backward of another microbatch or stage",
    Example("(0F0;0B0)OVERLAP_F_B"),
)
PAIR_PEERS = Rule(
    "pair-peers",
    "Both halves of a batched pair are exchanged with the same rank.",
    "write the send and the receive as separate actions",
    Example(
        "1RECV_F0,1F0,1SEND_F0,3RECV_F0,3F0,3B0,(3SEND_B0;1RECV_F1)SEND_B_RECV_F,1RECV_B0,1B0,"
        "1SEND_B0,1F1,1SEND_F1,3RECV_F1,3F1,3B1,3SEND_B1,1RECV_B1,1B1,1SEND_B1\n"
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
        "2RECV_F0,2F0,2SEND_F0,2RECV_B0,2B0,2SEND_B0,"
        "2RECV_F1,2F1,2SEND_F1,2RECV_B1,2B1,2SEND_B1",
        ranks=(1, 0, 2, 0),
        num_microbatches=2,
        form=Form.LOWERED,
    ),
)

RULES = (
    STAGE_RANGE,
    WRONG_RANK,
    MICROBATCH_RANGE,
    MICROBATCH_ABSENT,
    MICROBATCH_UNEXPECTED,
    NOT_IN_FORM,
    BACKWARD_IN_FORWARD_ONLY,
    TRANSFER_NOWHERE,
    TRANSFER_WITHIN_RANK,
    DUPLICATE,
    FUSED_PARTS,
    OVERLAP_DEPENDENT,
    PAIR_PEERS,
)

_NOTHING = Action(-1, Kind.OVERLAP_F_B)  # stands where an action was that is not looked at further
_FORWARD = frozenset({Kind.F, Kind.SEND_F, Kind.RECV_F, Kind.UNSHARD, Kind.RESHARD})
_PER_MICROBATCH = tuple(kind for kind in Kind if KINDS[kind].has_microbatch)

Problem = tuple[Rule, str]


class Survey:
    """What a schedule holds, without the actions that were reported here.

    Attributes:
        schedule: the schedule.
        programs: one sequence of actions a rank. An action that was reported is replaced by one
            that does nothing, or by the parts of it that are right; steps stay the same.
        steps: ``steps[kind][stage][microbatch]`` is the step at which the stage's rank does it;
            microbatches are in the order of their steps.
        elsewhere: the microbatches of a kind and stage that run on a wrong rank.
        sharding: for each stage ``(step, kind)`` of its UNSHARD, RESHARD and REDUCE_GRAD, in order.
    """

    def __init__(self, schedule: Schedule, report: Report) -> None:
        self.schedule, self._report = schedule, report
        self._ranks = schedule.placement.ranks
        self.programs: list[Sequence[Action]] = list(schedule.programs)
        self.steps: dict[Kind, list[dict[int, int]]] = {
            kind: [{} for _ in self._ranks] for kind in _PER_MICROBATCH
        }
        self.elsewhere: defaultdict[tuple[Kind, int], set[int]] = defaultdict(set)
        self.sharding: defaultdict[int, list[tuple[int, Kind]]] = defaultdict(list)
        homes: list[list[int]] = [[] for _ in schedule.programs]
        for stage, rank in enumerate(self._ranks):
            homes[rank].append(stage)
        for rank, stages in enumerate(homes):
            self._walk(rank, stages)

    def present(self, kind: Kind, stage: int) -> set[int]:
        """The microbatches for which an action is there, be it on the right rank or not."""
        return self.steps[kind][stage].keys() | self.elsewhere.get((kind, stage), ())

    def _walk(self, rank: int, stages: list[int]) -> None:
        """Record the usual actions at once; whatever is not usual takes the long way."""
        count = self.schedule.num_microbatches
        own: list[dict[int, dict[int, int]]] = [{} for _ in Kind]
        for kind in _PER_MICROBATCH:
            own[kind] = {s: self.steps[kind][s] for s in stages if self._fault(kind, s) is None}
        changed: dict[int, Action] = {}
        for step, action in enumerate(self.schedule.programs[rank]):
            stage, kind, microbatch, parts = action
            known = own[kind].get(stage)
            if known is None or parts or microbatch in known or not 0 <= microbatch < count:
                kept = self._fused(rank, step, action) if parts else self._alone(rank, step, action)
                if kept is not action:
                    changed[step] = kept
            else:
                known[microbatch] = step
        if changed:
            program = list(self.schedule.programs[rank])
            for step, action in changed.items():
                program[step] = action
            self.programs[rank] = program

    def _alone(self, rank: int, step: int, action: Action) -> Action:
        if KINDS[action.kind].fused:
            self._report.add(FUSED_PARTS, "has no parts", rank=rank, step=step, action=action)
            return _NOTHING
        return action if self._record(rank, step, action, action) else _NOTHING

    def _fused(self, rank: int, step: int, action: Action) -> Action:
        """The action with those parts that are right."""
        stage, kind, microbatch, parts = action
        made_well = (stage, microbatch) == (-1, -1) and _fit(kind, parts)
        if not made_well:
            made_of = ", ".join(part.kind.name for part in parts[:4])
            message = f"is made of {made_of}{', ...' if len(parts) > 4 else ''}"
            self._report.add(FUSED_PARTS, message, rank=rank, step=step, action=action)
        good = tuple(part for part in parts if self._record(rank, step, part, action))
        if not good:
            return _NOTHING
        if len(good) < len(parts) or not made_well:
            return Action(-1, kind if KINDS[kind].fused else Kind.OVERLAP_F_B, -1, good)
        for rule, message in self._together(kind, parts):
            self._report.add(rule, message, rank=rank, step=step, action=action)
        return action

    def _together(self, kind: Kind, parts: tuple[Action, ...]) -> Iterator[Problem]:
        first, second = parts
        if KINDS[kind].group is Group.COMPUTE:
            if (first.stage, first.microbatch) == (second.stage, second.microbatch):
                forward, backward = sorted(parts, key=lambda part: part.kind)
                yield OVERLAP_DEPENDENT, f"{backward} needs {forward}"
            return
        peers = [self._ranks[part.stage + KINDS[part.kind].stage_step] for part in parts]
        if peers[0] != peers[1]:
            yield PAIR_PEERS, f"{first} is with rank {peers[0]}, {second} with rank {peers[1]}"

    def _record(self, rank: int, step: int, leaf: Action, whole: Action) -> bool:
        """Note where a plain action is, or report what is wrong with it."""
        stage, kind, microbatch, _ = leaf
        problems = list(self._problems(rank, leaf))
        if [rule for rule, _ in problems] == [WRONG_RANK]:
            self.elsewhere[kind, stage].add(microbatch)
        if not problems and KINDS[kind].has_microbatch:
            known = self.steps[kind][stage]
            if microbatch in known:
                problems = [(DUPLICATE, f"is at step {known[microbatch]} already")]
            known.setdefault(microbatch, step)
        elif not problems:
            self.sharding[stage].append((step, kind))
        for rule, message in problems:
            part = "" if leaf is whole else f"{shown(leaf)}: "
            self._report.add(rule, part + message, rank=rank, step=step, action=whole)
        return not problems

    def _problems(self, rank: int, leaf: Action) -> Iterator[Problem]:
        stage, kind, microbatch, parts = leaf
        if KINDS[kind].fused or parts:
            yield FUSED_PARTS, "a part cannot have parts"
            return
        fault = self._fault(kind, stage)
        if fault is not None:
            yield fault
        if 0 <= stage < len(self._ranks) and self._ranks[stage] != rank:
            yield WRONG_RANK, f"stage {stage} is placed on rank {self._ranks[stage]}"
        last = self.schedule.num_microbatches - 1
        if not KINDS[kind].has_microbatch:
            if microbatch != -1:
                yield MICROBATCH_UNEXPECTED, f"{kind.name} has no microbatch"
        elif microbatch == -1:
            yield MICROBATCH_ABSENT, "which microbatch?"
        elif not 0 <= microbatch <= last:
            yield MICROBATCH_RANGE, f"microbatch {microbatch} is not in 0..{last}"

    def _fault(self, kind: Kind, stage: int) -> Problem | None:
        """Why no rank can have an action of this kind and stage."""
        schedule, info, last = self.schedule, KINDS[kind], len(self._ranks) - 1
        if not 0 <= stage <= last:
            return STAGE_RANGE, f"stage {stage} is not in 0..{last}"
        if schedule.forward_only and kind not in _FORWARD:
            return BACKWARD_IN_FORWARD_ONLY, "the schedule is forward-only"
        if info.mate is None:
            return None
        if schedule.form is Form.COMPUTE:
            return NOT_IN_FORM, "the schedule is in COMPUTE form"
        other = stage + info.stage_step
        if not 0 <= other <= last:
            return TRANSFER_NOWHERE, f"there is no stage {other}"
        if self._ranks[other] == self._ranks[stage]:
            return (
                TRANSFER_WITHIN_RANK,
                f"stages {stage} and {other} are both on rank {self._ranks[stage]}",
            )
        return None


def _fit(kind: Kind, parts: tuple[Action, ...]) -> bool:
    """Whether the parts are those that the kind names: of an overlap in either order, of a batched
    pair in the order of its name."""
    kinds = [Kind.B if part.kind is Kind.I else part.kind for part in parts]
    if KINDS[kind].group is Group.COMPUTE:
        kinds.sort()
    return tuple(kinds) == KINDS[kind].parts
