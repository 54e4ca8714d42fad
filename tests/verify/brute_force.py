"""Runs a schedule the slow and obvious way, as an independent judge of the verifier.

Tensors are names. Messages carry no tag: whoever receives gets what comes next on the channel, and
a computation that finds the wrong name in its hands ends the run, as does one that finds none.
"""

from collections import Counter, defaultdict, deque

from fullbore.ir import KINDS, Action, Form, Group, Kind, Schedule

Tensor = tuple[str, int, int]  # output or gradient (of the input), of which stage, microbatch
SENDS = (Kind.SEND_F, Kind.SEND_B)
RECEIVES = (Kind.RECV_F, Kind.RECV_B)


class Wrong(Exception):
    """Why the schedule is no good."""


def runs(schedule: Schedule, *, model: str = "rendezvous") -> bool:
    """Whether it comes to its end and has then done the right work."""
    try:
        Run(schedule, model).to_the_end()
    except Wrong:
        return False
    return True


class Run:
    def __init__(self, schedule: Schedule, model: str) -> None:
        self.schedule, self.model = schedule, model
        self.ranks = schedule.placement.ranks
        self.lowered = schedule.form is Form.LOWERED
        self.heads = [0] * schedule.num_ranks
        self.left: list[list[Action]] = [[] for _ in self.heads]  # halves that are under way
        self.held: list[set[Tensor]] = [set() for _ in self.heads]
        self.wires: defaultdict[tuple[int, int], deque[Tensor]] = defaultdict(deque)
        self.done: Counter[Action] = Counter()
        self.unsharded: set[int] = set()
        leaves = {leaf for _, _, action in schedule.actions() for leaf in action.leaves}
        self.sharded = {leaf.stage for leaf in leaves if leaf.kind in (Kind.UNSHARD, Kind.RESHARD)}
        self.reduces = any(leaf.kind is Kind.REDUCE_GRAD for leaf in leaves)

    def to_the_end(self) -> None:
        for rank, _, action in self.schedule.actions():
            self.check_shape(rank, action)
        ranks = range(len(self.heads))
        while sum(map(self.advance, ranks)):
            pass
        if any(map(self.unfinished, ranks)):
            raise Wrong("stuck")
        self.check_work()

    def check_shape(self, rank: int, action: Action) -> None:
        kinds = tuple(Kind.B if part.kind is Kind.I else part.kind for part in action.parts)
        wanted = KINDS[action.kind].parts
        if kinds != wanted and not (
            action.kind is Kind.OVERLAP_F_B and sorted(kinds) == sorted(wanted)
        ):
            raise Wrong(f"{action} has the wrong parts")
        if any(self.home(leaf.stage) != rank for leaf in action.leaves):
            raise Wrong(f"{action} is on the wrong rank")
        if any(KINDS[x.kind].has_microbatch == (x.microbatch == -1) for x in action.leaves):
            raise Wrong(f"{action} has a microbatch, or has none")
        transfers = [leaf for leaf in action.leaves if KINDS[leaf.kind].mate is not None]
        if transfers and not self.lowered:
            raise Wrong(f"{action} in compute form")
        peers = {self.home(leaf.stage + KINDS[leaf.kind].stage_step) for leaf in transfers}
        if rank in peers or len(peers) > 1:
            raise Wrong(f"{action} is exchanged with {peers}")

    def home(self, stage: int) -> int:
        if not 0 <= stage < len(self.ranks):
            raise Wrong(f"there is no stage {stage}")
        return self.ranks[stage]

    def unfinished(self, rank: int) -> bool:
        return self.heads[rank] < len(self.schedule.programs[rank])

    def advance(self, rank: int) -> bool:
        """Do what ``rank`` can do now; whether that was anything."""
        if not self.unfinished(rank):
            return False
        action = self.schedule.programs[rank][self.heads[rank]]
        if KINDS[action.leaves[0].kind].group is not Group.COMMUNICATION:
            if not all(self.is_ready(leaf) for leaf in action.leaves):
                return False
            for leaf in action.leaves:
                self.perform(rank, leaf)
            self.heads[rank] += 1
            return True
        if not self.left[rank]:
            self.left[rank] = list(action.leaves)
        moved = [half for half in list(self.left[rank]) if self.transfer(rank, half)]
        if not self.left[rank]:
            self.heads[rank] += 1
        return bool(moved)

    def transfer(self, rank: int, half: Action) -> bool:
        """Move one message if that is possible now."""
        peer = self.ranks[half.stage + KINDS[half.kind].stage_step]
        if half.kind in RECEIVES:
            wire = self.wires[peer, rank]
            if not wire:
                return False
            self.accept(rank, half, wire.popleft())
            self.left[rank].remove(half)
            return True
        name = "output" if half.kind is Kind.SEND_F else "gradient"
        message = (name, half.stage, half.microbatch)
        if message not in self.held[rank]:
            return False
        wire = self.wires[rank, peer]
        if self.model == "per_edge" and wire:
            return False
        if self.model != "rendezvous":
            wire.append(message)
            self.left[rank].remove(half)
            return True
        return self.meet(rank, half, peer, message)

    def meet(self, rank: int, half: Action, peer: int, message: Tensor) -> bool:
        """Hand over to a peer that stands at a receive from this rank."""
        if not self.unfinished(peer):
            return False
        standing = self.schedule.programs[peer][self.heads[peer]]
        for other in self.left[peer] or standing.leaves:
            if other.kind not in RECEIVES:
                continue
            if self.ranks[other.stage + KINDS[other.kind].stage_step] != rank:
                continue
            self.left[peer] = self.left[peer] or list(standing.leaves)
            self.accept(peer, other, message)
            self.left[peer].remove(other)
            self.left[rank].remove(half)
            if not self.left[peer]:
                self.heads[peer] += 1
            return True
        return False

    def accept(self, rank: int, receive: Action, message: Tensor) -> None:
        name = "output" if receive.kind is Kind.RECV_F else "gradient"
        away = KINDS[receive.kind].stage_step
        if message != (name, receive.stage + away, receive.microbatch):
            raise Wrong(f"{receive} gets {message}")
        self.held[rank].add(message)
        self.done[receive] += 1

    def is_ready(self, leaf: Action) -> bool:
        stage, kind, microbatch, _ = leaf
        if kind is Kind.W:
            return self.done[Action(stage, Kind.I, microbatch)] > 0
        if kind is Kind.F:
            return stage == 0 or self.has(stage, ("output", stage - 1, microbatch))
        if kind in (Kind.B, Kind.I):
            last = stage == len(self.ranks) - 1
            return self.done[Action(stage, Kind.F, microbatch)] > 0 and (
                last or self.has(stage, ("gradient", stage + 1, microbatch))
            )
        return True

    def has(self, stage: int, tensor: Tensor) -> bool:
        places = [self.held[self.ranks[stage]]] if self.lowered else self.held
        return any(tensor in place for place in places)

    def perform(self, rank: int, leaf: Action) -> None:
        stage, kind, microbatch, _ = leaf
        self.done[leaf] += 1
        if KINDS[kind].group is Group.COMPUTE:
            if stage in self.sharded and stage not in self.unsharded:
                raise Wrong(f"{leaf} on a sharded stage")
            if kind in (Kind.B, Kind.W) and self.done[Action(stage, Kind.REDUCE_GRAD)]:
                raise Wrong(f"{leaf} after the reduction")
        if kind is Kind.F:
            self.held[rank].add(("output", stage, microbatch))
        elif kind in (Kind.B, Kind.I):
            self.held[rank].add(("gradient", stage, microbatch))
        elif kind is Kind.UNSHARD:
            self.toggle(stage, closed=stage not in self.unsharded)
        elif kind is Kind.RESHARD:
            self.toggle(stage, closed=stage in self.unsharded)

    def toggle(self, stage: int, *, closed: bool) -> None:
        if not closed:
            raise Wrong(f"stage {stage} is there already")
        self.unsharded ^= {stage}

    def check_work(self) -> None:
        """Every piece of work once, no other, and nothing left open or under way."""
        for stage in range(len(self.ranks)):
            for microbatch in range(self.schedule.num_microbatches):
                f, b, i, w = (
                    self.done.pop(Action(stage, kind, microbatch), 0)
                    for kind in (Kind.F, Kind.B, Kind.I, Kind.W)
                )
                wanted = [(0, 0, 0)] if self.schedule.forward_only else [(1, 0, 0), (0, 1, 1)]
                if f != 1 or (b, i, w) not in wanted:
                    raise Wrong(f"stage {stage}, microbatch {microbatch}: {f} {b} {i} {w}")
                for kind in RECEIVES:
                    if self.done.pop(Action(stage, kind, microbatch), 0) > 1:
                        raise Wrong("received twice")
            reduced = self.done.pop(Action(stage, Kind.REDUCE_GRAD), 0)
            if reduced != self.reduces:
                raise Wrong(f"stage {stage} is reduced {reduced} times")
        strange = [leaf for leaf in self.done if KINDS[leaf.kind].has_microbatch]
        if strange or self.unsharded or any(self.wires.values()):
            raise Wrong(f"left: {strange}, {self.unsharded}, {self.wires}")
